// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
	onMedium  = "the medium"
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
		onMedium, onDisk, inConfig, onConsole, inLog, inObject, inEvent, inTrace, inMetrics, inArgs, inEnv,
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
		scanner.Look(one.place, one.detail, one.data)
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

// processes keeps the arguments and environments of all that this process has started, until
// the context ends. What each is told by its environment goes to told.
func (r *records) processes(ctx context.Context, told func(name, value string)) {
	for ctx.Err() == nil {
		for _, pid := range descendants() {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			environ, _ := os.ReadFile("/proc/" + pid + "/environ")
			name, _, _ := strings.Cut(string(args), "\x00")
			r.add(inArgs, filepath.Base(name), args)
			r.add(inEnv, filepath.Base(name), environ)

			for pair := range strings.SplitSeq(string(environ), "\x00") {
				if key, value, ok := strings.Cut(pair, "="); ok {
					told(key, value)
				}
			}
		}

		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// descendants are the processes that this one has started, and theirs.
func descendants() []string {
	parents := map[string]string{}

	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}

		_, rest, _ := strings.Cut(string(raw), ") ") // pid (comm) state ppid
		if fields := strings.Fields(rest); len(fields) > 1 {
			parents[filepath.Base(filepath.Dir(file))] = fields[1]
		}
	}

	self := strconv.Itoa(os.Getpid())

	var out []string

	for pid := range parents {
		for up := parents[pid]; up != "" && up != "1"; up = parents[up] {
			if up == self {
				out = append(out, pid)

				break
			}
		}
	}

	return out
}
