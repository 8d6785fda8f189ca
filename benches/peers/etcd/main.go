// etcd for benches/compare: a server of one member, and a contender on its published client.
//
//	etcd serve -dir DIR -client URL -peer URL     until it is told to stop
//	etcd contend -endpoint URL -workload …        says that it is ready, waits for a line, works, prints a line of JSON
package main

import (
	"flag"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("serve or contend?")
	}
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2:])
	case "contend":
		contend(os.Args[2:])
	default:
		log.Fatalf("serve or contend, not %s", os.Args[1])
	}
}

// As etcd is configured by default, on loopback: every write is on the disk before it is answered.
func serve(arguments []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	dir := flags.String("dir", "", "where its data is")
	client := flags.String("client", "", "where it listens to clients")
	peer := flags.String("peer", "", "where it would listen to its peers")
	_ = flags.Parse(arguments)

	cfg := embed.NewConfig()
	cfg.Dir = *dir
	cfg.LogLevel = "error"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls(*client), urls(*client)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls(*peer), urls(*peer)
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
	case err := <-server.Err():
		log.Print(err)
	}
}

func urls(text string) []url.URL {
	parsed, err := url.Parse(text)
	if err != nil {
		log.Fatal(err)
	}
	return []url.URL{*parsed}
}
