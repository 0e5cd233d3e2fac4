// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const (
	// envIdle makes the test binary run a Sentinel for the API at its URL.
	envIdle = "HYPERFLEET_TEST_SENTINEL_API"
	// envWholeResources makes that Sentinel use an expression that needs whole resources.
	envWholeResources = "HYPERFLEET_TEST_SENTINEL_WHOLE"
	resting           = 5000
	mebibyte          = 1 << 20
	// passes is the number of pages of the periodic list after which a process counts as idle.
	passes = 3
)

// nullBroker is a broker that drops all events.
type nullBroker struct{}

func (nullBroker) Publish(context.Context, string, cloudevents.Event) error { return nil }

func (nullBroker) CheckPublish(context.Context, string) error { return nil }

// runIdle runs a Sentinel until SIGTERM in its own process. It writes "rested" after it has evaluated the
// resources and read some pages of the periodic list.
func runIdle() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	c := newConfig(os.Getenv(envIdle))
	c.PollInterval, c.RelistInterval = 500*time.Millisecond, time.Second

	if os.Getenv(envWholeResources) != "" {
		// Whole resources are kept, and decoded in each evaluation.
		c.MessageDecision = &platform.Decision{Result: `resource.spec.text == "" && condition("Reconciled").status == "True"`}
	}

	var pages atomic.Int32

	calls, err := client.New(c.Clients.HyperFleetAPI, client.Options{Transport: retry.RoundTripperFunc(
		func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/clusters") {
				pages.Add(1)
			}

			return http.DefaultTransport.RoundTrip(r)
		})})
	if err != nil {
		return 1
	}

	s, err := sentinel.New(sentinel.Options{Conf: c, API: calls, Broker: nullBroker{}})
	if err != nil {
		return 1
	}

	go func() {
		wait := func(until func() bool) {
			for !until() && ctx.Err() == nil {
				time.Sleep(50 * time.Millisecond)
			}
		}

		wait(func() bool { return s.CheckReady(ctx) == nil })

		listed := pages.Load()
		wait(func() bool { return pages.Load() >= listed+passes })
		fmt.Println("rested")
	}()

	_ = s.Run(ctx)

	return 0
}

// insertReconciled writes reconciled clusters directly to the database, because the API would be too slow.
func (a *api) insertReconciled(t *testing.T, count int) {
	t.Helper()

	// Transactions are small, because they have a timeout and machines may be slow.
	const most = 50

	for begin := 0; begin < count; begin += most {
		err := a.store.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			for i := begin; i < min(begin+most, count); i++ {
				if err := insertCluster(ctx, tx, fmt.Sprintf("cluster-%05d", i)); err != nil {
					return err
				}
			}

			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func insertCluster(ctx context.Context, tx *store.Tx, name string) error {
	now := time.Now()

	stored, err := tx.Insert(ctx, store.Resource{
		Kind: "Cluster", Name: name, Generation: 1, CreatedTime: now, UpdatedTime: now,
		Labels: map[string]string{"tier": "gold"},
		Spec:   json.RawMessage(`{"text": "` + strings.Repeat("a large spec ", 100) + `"}`),
	})
	if err != nil {
		return err
	}

	return tx.SetConditions(stored.ID, []openapi.ResourceCondition{{
		Type: "Reconciled", Status: "True", ObservedGeneration: 1, CreatedTime: now, LastUpdatedTime: now, LastTransitionTime: now,
	}})
}

// TestSoakRest measures the memory of a process that evaluates 5,000 reconciled resources and lists
// them again.
func TestSoakRest(t *testing.T) { //nolint:tparallel // soak tests have the machine to themselves
	property.Soak(t)

	a := serve(t)
	a.insertReconciled(t, resting)

	for name, more := range map[string][]string{"default decision": nil, "expressions": {envWholeResources + "=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			used := measureMemory(t, append(more, envIdle+"="+a.url))
			t.Logf("%d reconciled resources: at most %.1f MiB resident", resting, float64(used)/mebibyte)

			// The race detector needs several times as much memory.
			if used == 0 || used > 100*mebibyte && !timing.RaceDetector {
				t.Errorf("%d bytes resident, want at most 100 MiB", used)
			}
		})
	}
}

// measureMemory runs an idle Sentinel and returns the peak of its memory in bytes.
func measureMemory(t *testing.T, environment []string) int64 {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Name: "sentinel", Path: self, Env: append(os.Environ(), environment...), LogPath: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}

	err = process.WaitReady(t.Context(), func(context.Context) error {
		if !strings.Contains(process.LogTail(), "rested") {
			return errRejected
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	used := readPeakMemory(t, process.PID())

	if err := process.Stop(); err != nil {
		t.Fatal(err)
	}

	if used == 0 {
		// The number includes the memory of the test itself at the start of the process.
		used = process.MaxRSS()
	}

	return used
}

// readPeakMemory returns the peak memory of a process since it started its program, in bytes. It returns 0
// if the system does not provide the number.
func readPeakMemory(t *testing.T, pid int) int64 {
	t.Helper()

	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}

	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")

	kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}

	return kib << 10
}

// TestIdleReadsAPageASecond counts the pages of the periodic list.
func TestIdleReadsAPageASecond(t *testing.T) {
	t.Parallel()

	const some = 350

	a, to := serve(t), newRecordingBroker(t)
	a.insertReconciled(t, some)

	c := newConfig(a.url)
	c.RelistInterval = time.Second
	s := startReplica(t, c, to).waitUntilReady(t)

	var lists, changes atomic.Int32

	first := make(chan time.Time, 1)

	s.intercept(func(r *http.Request) (*http.Response, error) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/clusters"):
			if lists.Add(1) == 1 {
				first <- time.Now()
			}
		case strings.HasSuffix(r.URL.Path, "/changes"):
			changes.Add(1)
		}

		return nil, nil //nolint:nilnil // the request passes
	})

	const enough = 4

	timing.WaitUntil(t, "pages are read", func() bool { return lists.Load() >= enough })

	// Each page is read at least one second after the previous one.
	took := time.Since(<-first)
	t.Logf("%d reconciled resources: %d pages and %d reads of changes in %s", some, lists.Load(), changes.Load(), took)

	if rate := float64(enough-1) / took.Seconds(); rate > 1.05 {
		t.Errorf("%.2f pages a second, want at most one", rate)
	}

	if len(to.events) != 0 {
		t.Errorf("%d events", len(to.events))
	}
}
