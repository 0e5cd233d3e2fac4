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

// The places that are scanned.
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

// listPlaces returns all places.
func listPlaces() []string {
	return []string{
		onSeed, onDisk, inConfig, onConsole, inLog, inObject, inEvent, inTrace, inMetrics, inArgs, inEnv,
	}
}

// records stores all recorded data until all credentials are known. Some credentials become known only when
// they are used.
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

// has returns whether the text was recorded in the place.
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

// Write records lines of the operator's log.
func (r *records) Write(line []byte) (int, error) {
	r.add(inLog, "a line", line)

	return len(line), nil
}

// addTree records the current content of a folder.
func (r *records) addTree(place, root string) {
	_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it was deleted
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

// scanWith passes all records to the scanner.
func (r *records) scanWith(scanner *secrets.Scanner) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, one := range r.seen {
		scanner.Scan(one.place, one.detail, one.data)
	}
}

// watchObjects records every version of the namespace's objects and of all clusters until the context ends.
func (r *records) watchObjects(ctx context.Context, t *testing.T, namespace string) {
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

// processWatcher records the processes that this process has started. All fixtures share one watcher, because
// reading /proc takes long.
type processWatcher struct {
	mu        sync.Mutex
	fixtures  map[*fixture]bool
	isRunning bool
}

var processes processWatcher

// subscribe reports processes to the fixture until stop is called.
func (c *processWatcher) subscribe(w *fixture) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.fixtures == nil {
		c.fixtures = map[*fixture]bool{}
	}

	c.fixtures[w] = true

	if !c.isRunning {
		c.isRunning = true

		go c.run()
	}

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.fixtures, w)
	}
}

// run polls until no fixture is subscribed. It reports each process once, and again if it runs another program
// or has another environment.
func (c *processWatcher) run() {
	known := map[string]bool{}

	for {
		var newProcesses []process

		for _, pid := range listDescendants() {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			environ, _ := os.ReadFile("/proc/" + pid + "/environ")
			one := process{args: args, environ: environ}

			if name := pid + "\x00" + string(args) + "\x00" + string(environ); !known[name] {
				known[name] = true
				newProcesses = append(newProcesses, one)
			}
		}

		if !c.notify(newProcesses) {
			return
		}

		time.Sleep(30 * time.Millisecond)
	}
}

// notify reports processes to all fixtures. It returns false if no fixture is subscribed.
func (c *processWatcher) notify(newProcesses []process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	for w := range c.fixtures {
		for _, one := range newProcesses {
			w.recordProcess(one)
		}
	}

	c.isRunning = len(c.fixtures) > 0

	return c.isRunning
}

// process is the arguments and the environment of a process.
type process struct{ args, environ []byte }

// recordProcess records the arguments and the environment of a process.
func (w *fixture) recordProcess(one process) {
	name, _, _ := strings.Cut(string(one.args), "\x00")
	w.add(inArgs, filepath.Base(name), one.args)
	w.add(inEnv, filepath.Base(name), one.environ)

	for name, value := range parseEnviron(one.environ) {
		w.registerRunnerCredential(name, value)
	}
}

// parseEnviron parses the content of /proc/PID/environ. If the process ends, the content may be truncated. An
// incomplete variable is ignored, so that it is not taken for an unknown credential.
func parseEnviron(environ []byte) map[string]string {
	out := map[string]string{}

	for pair := range strings.SplitAfterSeq(string(environ), "\x00") {
		whole, ended := strings.CutSuffix(pair, "\x00")
		if name, value, ok := strings.Cut(whole, "="); ok && ended {
			out[name] = value
		}
	}

	return out
}

// listDescendants returns the IDs of the processes that this process and its children have started. If a
// process ends meanwhile, others may be missing (proc(5), children).
func listDescendants() []string {
	var out []string

	for queue := []string{"self"}; len(queue) > 0; queue = queue[1:] {
		files, _ := filepath.Glob("/proc/" + queue[0] + "/task/*/children")
		for _, file := range files {
			text, _ := os.ReadFile(file)
			pids := strings.Fields(string(text))
			out, queue = append(out, pids...), append(queue, pids...)
		}
	}

	return out
}
