// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/secrets"
)

// The places that are looked at.
const (
	onSeed    = "the cloud-init ISO"
	onDisk    = "the machine's disk"
	inConfig  = "the VM's configuration"
	onConsole = "the machine's console"
	inLog     = "the operator's log"
	inObject  = "an object"
	inEvent   = "an event"
	inTrace   = "a trace"
	inMetrics = "the metrics"
	inArgs    = "a process's arguments"
	inEnv     = "a process's environment"
)

// every is all places.
func every() []string {
	return []string{
		onSeed, onDisk, inConfig, onConsole, inLog, inObject, inEvent, inTrace, inMetrics, inArgs, inEnv,
	}
}

// records keep what was seen of a world until all of its credentials are known: some are
// only known when they have been used.
type records struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]record
}

type record struct {
	place, detail string
	data          []byte
}

func (r *records) add(place, detail string, data []byte) {
	sum := sha256.Sum256(append([]byte(place+"\x00"), data...))

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.seen == nil {
		r.seen = map[[sha256.Size]byte]record{}
	}

	if _, known := r.seen[sum]; !known {
		r.seen[sum] = record{place, detail, append([]byte(nil), data...)}
	}
}

// has says whether a text was seen in a place.
func (r *records) has(place, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, one := range r.seen {
		if one.place == place && bytes.Contains(one.data, []byte(text)) {
			return true
		}
	}

	return false
}

// Write takes the operator's log.
func (r *records) Write(line []byte) (int, error) {
	r.add(inLog, "a line", line)

	return len(line), nil
}

// tree keeps a folder as it is now.
func (r *records) tree(place, root string) {
	_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went away
		}

		below, _ := filepath.Rel(root, path)
		r.add(place, "the name of "+below, []byte(below))

		if entry.Type().IsRegular() {
			if data, err := os.ReadFile(path); err == nil {
				r.add(place, below, data)
			}
		}

		return nil
	})
}

// show lets the scanner look at everything.
func (r *records) show(scanner *secrets.Scanner) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, one := range r.seen {
		scanner.Scan(one.place, one.detail, one.data)
	}
}

// watch keeps every version of every object of the namespace and of the clusters, until the
// context ends.
func (r *records) watch(ctx context.Context, t *testing.T, namespace string) {
	t.Helper()

	kube, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	for place, lists := range map[string][]client.ObjectList{
		inObject: {
			&v1alpha1.HypervisorClusterList{}, &v1alpha1.HypervisorMachineTemplateList{}, &v1alpha1.RunnerPoolList{},
			&v1alpha1.MachineClaimList{}, &v1alpha1.RunnerJobList{}, &v1alpha1.RunnerJobBatchList{}, &v1alpha1.RunnerLogList{},
			&corev1.ConfigMapList{},
		},
		inEvent: {&eventsv1.EventList{}},
	} {
		for _, list := range lists {
			var opts []client.ListOption
			if _, cluster := list.(*v1alpha1.HypervisorClusterList); !cluster {
				opts = append(opts, client.InNamespace(namespace))
			}

			watch, err := kube.Watch(ctx, list, opts...)
			if err != nil {
				t.Fatal(err)
			}

			go func() {
				defer watch.Stop()

				for event := range watch.ResultChan() {
					if data, err := json.Marshal(event.Object); err == nil {
						r.add(place, fmt.Sprintf("%T", event.Object), data)
					}
				}
			}()
		}
	}
}

// census looks at the processes that this one has started, for all worlds at a time: what is
// in /proc is much.
type census struct {
	mu     sync.Mutex
	worlds map[*world]bool
	runs   bool
}

var processes census

// follow has a world told of processes, until it is told to stop.
func (c *census) follow(w *world) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.worlds == nil {
		c.worlds = map[*world]bool{}
	}

	c.worlds[w] = true

	if !c.runs {
		c.runs = true

		go c.run()
	}

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.worlds, w)
	}
}

// run looks until nobody wants to know. What is known of a process is not told again; it may
// run another program in time, with another environment.
func (c *census) run() {
	known := map[string]bool{}

	for {
		var news []process

		for _, pid := range descendants() {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			environ, _ := os.ReadFile("/proc/" + pid + "/environ")
			one := process{args: args, environ: environ}

			if name := pid + "\x00" + string(args) + "\x00" + string(environ); !known[name] {
				known[name] = true
				news = append(news, one)
			}
		}

		if !c.tell(news) {
			return
		}

		time.Sleep(30 * time.Millisecond)
	}
}

// tell tells all worlds, and says whether there is one.
func (c *census) tell(news []process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	for w := range c.worlds {
		for _, one := range news {
			w.saw(one)
		}
	}

	c.runs = len(c.worlds) > 0

	return c.runs
}

// process is what a process is called with.
type process struct{ args, environ []byte }

// saw keeps the arguments and the environment of a process.
func (w *world) saw(one process) {
	name, _, _ := strings.Cut(string(one.args), "\x00")
	w.add(inArgs, filepath.Base(name), one.args)
	w.add(inEnv, filepath.Base(name), one.environ)

	for name, value := range variables(one.environ) {
		w.told(name, value)
	}
}

// variables are those of an environment as /proc has it. Of a process that ends meanwhile
// what was read may break off, and half a credential is none: it would be taken for one that
// the machine was never given.
func variables(environ []byte) map[string]string {
	out := map[string]string{}

	for pair := range strings.SplitAfterSeq(string(environ), "\x00") {
		whole, ended := strings.CutSuffix(pair, "\x00")
		if name, value, ok := strings.Cut(whole, "="); ok && ended {
			out[name] = value
		}
	}

	return out
}

// descendants are the processes that this one has started, and theirs. A process that ends
// meanwhile may hide others for once (proc(5), children).
func descendants() []string {
	var out []string

	for ask := []string{"self"}; len(ask) > 0; ask = ask[1:] {
		files, _ := filepath.Glob("/proc/" + ask[0] + "/task/*/children")
		for _, file := range files {
			text, _ := os.ReadFile(file)
			pids := strings.Fields(string(text))
			out, ask = append(out, pids...), append(ask, pids...)
		}
	}

	return out
}
