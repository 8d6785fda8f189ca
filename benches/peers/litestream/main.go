// Lock cycles with litestream's S3 leaser, as its module is published: each worker has leasers of its own, one for each
// key. It keeps to what every contender of benches/compare does: it says that it is ready, waits for a line, works for so
// long, and prints what it did as one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/benbjohnson/litestream/s3"
)

var (
	endpoint    = flag.String("endpoint", "", "where the store listens")
	bucket      = flag.String("bucket", "", "the bucket")
	prefix      = flag.String("prefix", "", "below what its keys are")
	workload    = flag.String("workload", "private", "private, fresh or keys")
	concurrency = flag.Int("concurrency", 8, "how many work at once")
	seconds     = flag.Float64("seconds", 5, "for how long")
	keys        = flag.Int("keys", 1000, "how many keys the workload of that name goes round")
)

type result struct {
	Operations int     `json:"operations"`
	Errors     int     `json:"errors"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion("us-east-1"))
	if err != nil {
		log.Fatal(err)
	}
	client := awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.BaseEndpoint = aws.String(*endpoint)
		o.UsePathStyle = true
		// What litestream itself sets for a store that is not Amazon's.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	if err := warm(ctx, client); err != nil {
		log.Fatal(err)
	}

	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		log.Fatal(err)
	}
	began := time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	times := make([][]time.Duration, *concurrency)
	errors := make([]int, *concurrency)
	var workers sync.WaitGroup
	for worker := range *concurrency {
		workers.Go(func() {
			for turn := 0; time.Now().Before(end); turn++ {
				before := time.Now()
				if err := cycle(ctx, client, key(worker, turn)); err != nil {
					if errors[worker] == 0 {
						log.Print(err)
					}
					errors[worker]++
					continue
				}
				times[worker] = append(times[worker], time.Since(before))
			}
		})
	}
	workers.Wait()
	report(slices.Concat(times...), errors, time.Since(began))
}

// The keys of a worker, and no other's.
func key(worker, turn int) string {
	switch *workload {
	case "private":
		turn = 0
	case "keys":
		share := *keys / *concurrency
		turn = turn % share
	case "fresh":
	default:
		log.Fatalf("no workload of the name %q", *workload)
	}
	return fmt.Sprintf("%s/%d-%d", *prefix, worker, turn)
}

func leaser(client s3.S3API, path string) *s3.Leaser {
	leaser := s3.NewLeaser()
	leaser.SetLogger(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError})))
	leaser.SetClient(client)
	leaser.Bucket, leaser.Path, leaser.TTL = *bucket, path, time.Minute
	return leaser
}

func cycle(ctx context.Context, client s3.S3API, path string) error {
	leaser := leaser(client, path)
	lease, err := leaser.AcquireLease(ctx)
	if err != nil {
		return err
	}
	return leaser.ReleaseLease(ctx, lease)
}

// Connections are there before the time runs, as for every contender.
func warm(ctx context.Context, client s3.S3API) error {
	failed := make(chan error, *concurrency)
	for worker := range *concurrency {
		go func() { failed <- cycle(ctx, client, fmt.Sprintf("%s/warm-%d", *prefix, worker)) }()
	}
	for range *concurrency {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func report(times []time.Duration, errors []int, took time.Duration) {
	slices.Sort(times)
	at := func(part float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return float64(times[int(part*float64(len(times)-1))].Microseconds()) / 1000
	}
	sum := 0
	for _, count := range errors {
		sum += count
	}
	line, err := json.Marshal(result{len(times), sum, took.Seconds(), at(0.5), at(0.99)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}
