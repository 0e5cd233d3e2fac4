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

	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// glance is how often the meter looks whether a task has ended.
const glance = 100 * time.Millisecond

// classes are what calls are for. Those that change something begin with their method.
var classes = []struct {
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

func classOf(req *http.Request) string {
	for _, class := range classes {
		if class.call.MatchString(req.Method + " " + req.URL.Path) {
			return class.name
		}
	}

	return req.Method + " " + req.URL.Path
}

// meter measures a life.
type meter struct {
	t    testing.TB
	site *realpve.Site
	wg   sync.WaitGroup

	mu     sync.Mutex
	begun  time.Time
	calls  map[string]int
	writes map[string]int
	events []event
	tasks  []*measured
	wakes  []time.Time
}

// event is a moment of the life: a change that is asked for, or what it led to.
type event struct {
	what string
	at   time.Time
}

// measured is a task of Proxmox VE.
type measured struct {
	what        string
	asked, over time.Time
}

func newMeter(t testing.TB, site *realpve.Site) *meter {
	t.Helper()

	m := &meter{t: t, site: site}
	m.begin()
	t.Cleanup(m.wg.Wait)

	return m
}

// begin forgets what was.
func (m *meter) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.begun, m.calls, m.writes, m.events, m.tasks, m.wakes = time.Now(), map[string]int{}, map[string]int{}, nil, nil, nil
}

func (m *meter) event(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.events = append(m.events, event{what, time.Now()})
}

func (m *meter) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.wakes = append(m.wakes, time.Now())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var upid = regexp.MustCompile(`UPID:[^"]+:`)

// transport is the provider's way, with each call counted and each task that it starts
// followed.
func (m *meter) transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		class, changes := classOf(req), req.Method != http.MethodGet

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
			m.follow(class, string(task))
		}

		return res, err
	})
}

// follow looks when a task ends.
func (m *meter) follow(what, upid string) {
	task := &measured{what: what, asked: time.Now()}

	m.mu.Lock()
	m.tasks = append(m.tasks, task)
	m.mu.Unlock()

	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()

		ticker := time.NewTicker(glance)
		defer ticker.Stop()

		for range ticker.C {
			ended, _ := m.site.TaskResult(ctx, upid)
			if ended || ctx.Err() != nil {
				m.mu.Lock()
				task.over = time.Now()
				m.mu.Unlock()

				return
			}
		}
	})
}

// changes tells how often each change was asked for.
func (m *meter) changes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()

	var out []string
	for _, name := range slices.Sorted(maps.Keys(m.writes)) {
		out = append(out, fmt.Sprintf("%s %d", name, m.writes[name]))
	}

	return out
}

// table tells of the life: its phases, its calls, and how long after each task's end the
// provider woke the owner.
func (m *meter) table() string {
	m.wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()

	var text strings.Builder

	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "phase\tafter\tsince the last")

	last := m.begun
	for _, e := range m.events {
		fmt.Fprintf(w, "%s\t%.1f s\t%.1f s\n", e.what, e.at.Sub(m.begun).Seconds(), e.at.Sub(last).Seconds())
		last = e.at
	}

	fmt.Fprintln(w, "\ntask\ttook\tnoticed after")

	lost := time.Duration(0)

	for _, task := range m.tasks {
		late := m.noticed(task)
		lost += late
		fmt.Fprintf(w, "%s\t%.1f s\t%.1f s\n", task.what, task.over.Sub(task.asked).Seconds(), late.Seconds())
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

// noticed is how long after a task's end the owner was woken. The provider may see the end
// a glance before the meter does.
func (m *meter) noticed(task *measured) time.Duration {
	for _, wake := range m.wakes {
		if late := wake.Sub(task.over); late >= -3*glance {
			return max(0, late)
		}
	}

	return 0
}
