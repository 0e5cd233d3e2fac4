// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// gitHubTimeout is the time for which GitHub waits for the response to a webhook
// (https://docs.github.com/webhooks/using-webhooks/best-practices-for-using-webhooks).
const gitHubTimeout = 10 * time.Second

// BenchmarkWebhookBurst sends 5,000 webhooks of 5,000 jobs at once, and waits for each response as long as
// GitHub does. It prints the ratio of the slowest response to GitHub's timeout, and the number of responses
// that were not 2xx.
func BenchmarkWebhookBurst(b *testing.B) {
	const many = 5000

	for b.Loop() {
		b.StopTimer()
		burst := newBurstSender(b, many)
		b.StartTimer()

		start := time.Now()
		seen := burst.sendBurst(b, 0, many)
		b.ReportMetric(time.Since(start).Seconds(), "burst-s")
		b.ReportMetric(seen.slowest.Seconds()/gitHubTimeout.Seconds(), "slowest/patience")
		b.ReportMetric(float64(seen.rejected), "refused")
	}
}

// BenchmarkWebhookMemory sends 1,000 and then 4,000 webhooks over a hundred connections, and prints the ratio
// of the peak heap sizes. Sender and receiver are in one process, and the sender's part is proportional to
// the number of webhooks.
func BenchmarkWebhookMemory(b *testing.B) {
	const width = 100

	for b.Loop() {
		b.StopTimer()
		burst := newBurstSender(b, width)
		b.StartTimer()

		short := burst.sendBurst(b, 0, 1000)
		long := burst.sendBurst(b, 1000, 4000)
		b.ReportMetric(float64(long.peakHeap)/float64(short.peakHeap), "heap-4000/1000")
		b.ReportMetric(float64(long.peakHeap)/(1<<20), "peak-MiB")
	}
}

type burstSender struct {
	url, repository string
	connections     int
	client          *http.Client
}

// burstResult is the outcome of a burst.
type burstResult struct {
	slowest  time.Duration
	rejected int
	peakHeap uint64
}

func newBurstSender(b *testing.B, width int) *burstSender {
	b.Helper()

	namespace, repository := env.Namespace(b), "burst/app"
	createPool(b, namespace, "burst", repository, "s")

	server, _ := startBurstServer(b, 0, client.ObjectKey{Namespace: namespace, Name: "burst"})

	return &burstSender{
		url: server.URL, repository: repository, connections: width,
		client: &http.Client{Timeout: gitHubTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: width}},
	}
}

// sendBurst sends the given number of webhooks for jobs whose ids are greater than from.
func (w *burstSender) sendBurst(b *testing.B, from, many int) burstResult {
	b.Helper()

	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		seen   burstResult
		memory runtime.MemStats
	)

	runtime.GC()

	next := make(chan int, many)
	for i := range many {
		next <- from + i + 1
	}
	close(next)

	for range w.connections {
		group.Go(func() {
			for id := range next {
				timestamp := time.Now()
				// The code is 0 if no response was received.
				code, _ := sendWebhook(b.Context(), w.client, w.url, newWebhookRequest(newWebhookBody(w.repository, id, "queued", "self-hosted"), "s"))

				mu.Lock()
				seen.slowest = max(seen.slowest, time.Since(timestamp))

				if code/100 != 2 {
					seen.rejected++
				}

				if id%100 == 0 {
					runtime.ReadMemStats(&memory)
					seen.peakHeap = max(seen.peakHeap, memory.HeapInuse)
				}
				mu.Unlock()
			}
		})
	}

	group.Wait()

	return seen
}
