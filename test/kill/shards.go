// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// Shards are several operators that run side by side on one API server, each for a namespace of its own, and use the
// same HypervisorCluster.
type Shards struct {
	// Fleets has the namespace of each operator. They share the hypervisor and the HypervisorCluster of the first.
	Fleets   []*fleet.Fleet
	Machines *machineWatcher

	operators []*operatorRunner
}

// NewShards starts the operators. The API server must have no other operators.
func NewShards(t testing.TB, env *kube.Env, binary string, count int) *Shards {
	t.Helper()

	w := &Shards{}

	for i := range count {
		options := fleet.Options{}
		if i > 0 {
			options.PVE = w.Fleets[0].PVE
		}

		f := fleet.New(t, env, options)
		f.Timeout = waitTimeout
		f.Runners.JobSilence, f.Runners.OrphanInterval = time.Second, 500*time.Millisecond
		w.Fleets = append(w.Fleets, f)
		first := w.Fleets[0]
		f.Cluster = first.Cluster

		o := newOperatorRunner(t, f, binary, fastElection(), env.Config, config.AreaRunners)
		o.configure(map[string]any{
			"namespace": first.Namespace, "operatorUID": first.OperatorUID, "namespaces": []string{f.Namespace},
			"shard": map[string]any{"name": fmt.Sprint("part-", i), "operators": count},
		})
		f.Front.Serve(o.front)
		w.operators = append(w.operators, o)
	}

	w.Machines = newMachineWatcher(w.Fleets[0])
	w.Fleets[0].CreateCluster(w.Fleets[0].NewCluster())

	for i, f := range w.Fleets {
		pool := f.NewPool(4)
		pool.Spec.Scaling.ScaleDownDelay = &metav1.Duration{Duration: 50 * time.Millisecond}
		f.Create(f.NewTemplate())
		f.Create(pool)
		w.Start(i)
	}

	for _, f := range w.Fleets {
		f.EventuallyReady(f.NewPool(0))
	}

	return w
}

// Start starts an operator.
func (w *Shards) Start(index int) {
	w.Fleets[0].T.Helper()

	if err := w.operators[index].start(w.Fleets[0].T.Context()); err != nil {
		w.Fleets[0].T.Fatal(err)
	}
}

// Kill kills an operator with SIGKILL.
func (w *Shards) Kill(index int) { w.operators[index].kill() }

// Queue queues jobs at the CI platform of each operator.
func (w *Shards) Queue(jobs int) {
	for _, f := range w.Fleets {
		f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: jobs})
	}
}

// AwaitMachine waits until a machine of an operator's namespace is being created.
func (w *Shards) AwaitMachine(index int) {
	f := w.Fleets[index]

	f.Eventually("the creation of a machine", func() (bool, string) {
		var claims v1alpha1.MachineClaimList
		if err := f.Client.List(f.T.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
			return false, err.Error()
		}

		for i := range claims.Items {
			if claims.Items[i].Status.VMRef != nil {
				return true, ""
			}
		}

		return false, fmt.Sprintf("none of %d claims has a machine", len(claims.Items))
	})
}

// Logs returns the logs of all operators.
func (w *Shards) Logs() string {
	var out strings.Builder
	for i, o := range w.operators {
		fmt.Fprintf(&out, "=== part %d\n%s", i, o.Logs())
	}

	return out.String()
}
