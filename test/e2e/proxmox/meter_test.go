// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// pollInterval is the interval at which the meter polls tasks.
const pollInterval = 100 * time.Millisecond

// callClasses are the purposes of calls. Patterns of changes begin with their method.
var callClasses = []struct {
	name string
	call *regexp.Regexp
}{
	{"clone", regexp.MustCompile(`^POST .*/clone$`)},
	{"upload", regexp.MustCompile(`^POST .*/upload$`)},
	{"configure", regexp.MustCompile(`^(PUT|POST) .*/config$`)},
	{"resize", regexp.MustCompile(`^PUT .*/resize$`)},
	{"start", regexp.MustCompile(`^POST .*/status/start$`)},
	{"stop", regexp.MustCompile(`^POST .*/status/stop$`)},
	{"destroy", regexp.MustCompile(`^DELETE .*/qemu/\d+$`)},
	{"delete ISO", regexp.MustCompile(`^DELETE .*/content/`)},
	{"read tasks", regexp.MustCompile(`^GET .*/tasks`)},
	{"read configuration", regexp.MustCompile(`^GET .*/config$`)},
	{"read status", regexp.MustCompile(`^GET .*/status/current$`)},
	{"list machines", regexp.MustCompile(`^GET .*/cluster/resources$`)},
	{"read nodes and storages", regexp.MustCompile(`^GET .*/(nodes|storage|content|network)$`)},
	{"ask guest agent", regexp.MustCompile(`^GET .*/agent/`)},
}

func findClass(req *http.Request) string {
	for _, class := range callClasses {
		if class.call.MatchString(req.Method + " " + req.URL.Path) {
			return class.name
		}
	}

	return req.Method + " " + req.URL.Path
}

// meter measures a lifecycle.
type meter struct {
	t    testing.TB
	site *realpve.Site
	wg   sync.WaitGroup

	mu        sync.Mutex
	startTime time.Time
	calls     map[string]int
	writes    map[string]int
	events    []event
	tasks     []*measuredTask
	wakes     []time.Time
}

// event is a change in the lifecycle.
type event struct {
	name string
	time time.Time
}

// measuredTask is a task of Proxmox VE.
type measuredTask struct {
	name               string
	startTime, endTime time.Time
}

func newMeter(t testing.TB, site *realpve.Site) *meter {
	t.Helper()

	m := &meter{t: t, site: site}
	m.reset()
	t.Cleanup(m.wg.Wait)

	return m
}

// reset deletes all measurements.
func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.startTime, m.calls, m.writes, m.events, m.tasks, m.wakes = time.Now(), map[string]int{}, map[string]int{}, nil, nil, nil
}

func (m *meter) addEvent(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.events = append(m.events, event{what, time.Now()})
}

func (m *meter) addWake() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.wakes = append(m.wakes, time.Now())
}

var upid = regexp.MustCompile(`UPID:[^"]+:`)

// wrapTransport counts each call, and follows each task that a call starts.
func (m *meter) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		class, changes := findClass(req), req.Method != http.MethodGet

		m.mu.Lock()
		m.calls[class]++

		if changes {
			m.writes[class]++
			m.events = append(m.events, event{class, time.Now()})
		}
		m.mu.Unlock()

		res, err := next.RoundTrip(req)
		if err != nil || !changes {
			return res, err
		}

		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // read to its end
		res.Body = io.NopCloser(bytes.NewReader(body))

		if task := upid.Find(body); task != nil {
			m.followTask(class, string(task))
		}

		return res, err
	})
}

// followTask polls until the task has ended.
func (m *meter) followTask(what, upid string) {
	task := &measuredTask{name: what, startTime: time.Now()}

	m.mu.Lock()
	m.tasks = append(m.tasks, task)
	m.mu.Unlock()

	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()

		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()

		for range ticker.C {
			ended, _ := m.site.TaskResult(ctx, upid)
			if ended || ctx.Err() != nil {
				m.mu.Lock()
				task.endTime = time.Now()
				m.mu.Unlock()

				return
			}
		}
	})
}

// listChanges returns how often each change was requested.
func (m *meter) listChanges() []string {
	m.mu.Lock()
	defer m.mu.Unlock()

	var out []string
	for _, name := range slices.Sorted(maps.Keys(m.writes)) {
		out = append(out, fmt.Sprintf("%s %d", name, m.writes[name]))
	}

	return out
}

// formatTable returns a table of the phases, the calls, and the delay between each task's end and the next
// wake of the owner.
func (m *meter) formatTable() string {
	m.wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()

	var text strings.Builder

	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "phase\tafter\tsince the last")

	last := m.startTime
	for _, e := range m.events {
		fmt.Fprintf(w, "%s\t%.1f s\t%.1f s\n", e.name, e.time.Sub(m.startTime).Seconds(), e.time.Sub(last).Seconds())
		last = e.time
	}

	fmt.Fprintln(w, "\ntask\ttook\tnoticed after")

	lost := time.Duration(0)

	for _, task := range m.tasks {
		late := m.measureDelay(task)
		lost += late
		fmt.Fprintf(w, "%s\t%.1f s\t%.1f s\n", task.name, task.endTime.Sub(task.startTime).Seconds(), late.Seconds())
	}

	fmt.Fprintf(w, "all\t\t%.1f s\n\ncalls\t\n", lost.Seconds())

	all := 0
	for _, name := range slices.Sorted(maps.Keys(m.calls)) {
		fmt.Fprintf(w, "%s\t%d\n", name, m.calls[name])
		all += m.calls[name]
	}

	fmt.Fprintf(w, "all\t%d\n", all)
	_ = w.Flush() // into memory

	return text.String()
}

// measureDelay returns the delay between a task's end and the next wake. The provider may notice the end a
// little before the meter does.
func (m *meter) measureDelay(task *measuredTask) time.Duration {
	for _, wake := range m.wakes {
		if late := wake.Sub(task.endTime); late >= -3*pollInterval {
			return max(0, late)
		}
	}

	return 0
}
