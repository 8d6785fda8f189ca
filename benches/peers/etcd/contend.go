package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

type result struct {
	Operations int     `json:"operations"`
	Errors     int     `json:"errors"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
}

type contender struct {
	clients     []*clientv3.Client
	sessions    []*concurrency.Session
	prefix      string
	workload    string
	concurrency int
	keys        int
}

func contend(arguments []string) {
	flags := flag.NewFlagSet("contend", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "where the server listens")
	prefix := flags.String("prefix", "", "below what its keys are")
	workload := flags.String("workload", "private", "private, fresh, keys, one or decisions")
	workers := flags.Int("concurrency", 8, "how many work at once")
	seconds := flags.Float64("seconds", 5, "for how long")
	keys := flags.Int("keys", 1000, "how many keys the workload of that name goes round")
	_ = flags.Parse(arguments)

	c := contender{prefix: *prefix, workload: *workload, concurrency: *workers, keys: *keys}
	if err := c.prepare(*endpoint); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		log.Fatal(err)
	}
	began := time.Now()
	ctx, stop := context.WithDeadline(context.Background(), began.Add(time.Duration(*seconds*float64(time.Second))))
	defer stop()
	times := make([][]time.Duration, *workers)
	failures := make([]int, *workers)
	var running sync.WaitGroup
	for worker := range *workers {
		running.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				before := time.Now()
				err := c.operation(ctx, worker, turn)
				if errors.Is(err, context.DeadlineExceeded) {
					// Still waiting for its turn when the time was up.
					return
				}
				if err != nil {
					if failures[worker] == 0 {
						log.Print(err)
					}
					failures[worker]++
					continue
				}
				times[worker] = append(times[worker], time.Since(before))
			}
		})
	}
	running.Wait()
	report(slices.Concat(times...), failures, time.Since(began))
	// Sessions are not closed one by one: what they hold ends with their leases.
}

// Everything that is done once: connections, and a session for each worker, which keeps its lease alive by itself.
func (c *contender) prepare(endpoint string) error {
	clients := 1
	if c.workload == "decisions" {
		clients = 4
	}
	for range clients {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return err
		}
		c.clients = append(c.clients, client)
		if _, err := client.Get(context.Background(), "warm"); err != nil {
			return err
		}
	}
	if c.workload == "decisions" {
		return nil
	}
	for range c.concurrency {
		session, err := concurrency.NewSession(c.clients[0], concurrency.WithTTL(60))
		if err != nil {
			return err
		}
		c.sessions = append(c.sessions, session)
	}
	return nil
}

func (c *contender) operation(ctx context.Context, worker, turn int) error {
	switch c.workload {
	case "private":
		return c.cycle(ctx, worker, fmt.Sprintf("%s/%d", c.prefix, worker))
	case "fresh":
		return c.cycle(ctx, worker, fmt.Sprintf("%s/%d-%d-%d", c.prefix, os.Getpid(), worker, turn))
	case "keys":
		return c.cycle(ctx, worker, fmt.Sprintf("%s/%d-%d", c.prefix, worker, turn%(c.keys/c.concurrency)))
	case "one":
		return c.cycle(ctx, worker, c.prefix+"/one")
	case "decisions":
		return c.decide(fmt.Sprintf("%s/%d-%d-%d", c.prefix, os.Getpid(), worker, turn))
	default:
		return fmt.Errorf("no workload of the name %q", c.workload)
	}
}

// Waiting ends with the time; what was begun is finished.
func (c *contender) cycle(ctx context.Context, worker int, key string) error {
	mutex := concurrency.NewMutex(c.sessions[worker], key)
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	return mutex.Unlock(context.Background())
}

// A register that is written once, and read by three.
func (c *contender) decide(key string) error {
	ctx := context.Background()
	answer, err := c.clients[0].Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "commit")).
		Commit()
	if err != nil {
		return err
	}
	if !answer.Succeeded {
		return fmt.Errorf("%s was decided by somebody else", key)
	}
	found := make(chan error, 3)
	for _, client := range c.clients[1:] {
		go func() {
			got, err := client.Get(ctx, key)
			if err == nil && len(got.Kvs) != 1 {
				err = fmt.Errorf("%s is not there", key)
			}
			found <- err
		}()
	}
	return errors.Join(<-found, <-found, <-found)
}

func report(times []time.Duration, failures []int, took time.Duration) {
	slices.Sort(times)
	at := func(part float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return float64(times[int(part*float64(len(times)-1))].Microseconds()) / 1000
	}
	sum := 0
	for _, count := range failures {
		sum += count
	}
	line, err := json.Marshal(result{len(times), sum, took.Seconds(), at(0.5), at(0.99)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}
