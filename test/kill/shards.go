// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
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
	// Accounts are the client configurations of the operators.
	Accounts []*rest.Config

	operators []*operatorRunner
}

// accountPrefix and the name of a shard are the name of its ServiceAccount.
const accountPrefix = "hyperfleet-runners-"

// allowShard gives the account of a shard the permissions of deploy/shards for one namespace, and those of
// deploy/namespace-secrets for the Secrets in it. operatorNamespace is the namespace that the operators run in.
func allowShard(t testing.TB, env *kube.Env, account, operatorNamespace, namespace string) {
	t.Helper()

	const subject = "name: %s\n    namespace: hyperfleet-system"

	rename := strings.NewReplacer(
		fmt.Sprintf(subject, "hyperfleet-runners"), fmt.Sprintf("name: %s\n    namespace: %s", account, operatorNamespace),
		"hyperfleet-runners-shard", account, "hyperfleet-system", operatorNamespace,
	)

	// The values are the namespace of the objects of a file that have none.
	for file, namespaced := range map[string]string{
		"../../deploy/base/serviceaccount.yaml": "", "../../deploy/rbac/runners.yaml": "",
		"../../deploy/shards/roles.yaml": "", "../../deploy/shards/operator.yaml": "", "../../deploy/shards/events.yaml": "",
		"../../deploy/shards/namespace.yaml":       namespace,
		"../../deploy/namespace-secrets/role.yaml": namespace,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		own := filepath.Join(t.TempDir(), filepath.Base(file))

		if err := os.WriteFile(own, []byte(rename.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}

		objects, err := kubeproc.ReadObjects(own)
		if err != nil {
			t.Fatal(err)
		}

		for _, object := range objects {
			// Nothing has this role: the shards have no cluster-wide one.
			if object.GetKind() == "ClusterRole" && object.GetName() == "hyperfleet-runners" {
				continue
			}

			if namespaced != "" {
				object.SetNamespace(namespaced)
			}

			if err := client.IgnoreAlreadyExists(env.Client.Create(t.Context(), object)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// NewShards starts the operators, each with an account that may work in its namespace only. The API server must have no
// other operators.
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

		name := fmt.Sprint("part-", i)
		account := env.ServiceAccount(t, first.Namespace, accountPrefix+name)
		w.Accounts = append(w.Accounts, account)
		allowShard(t, env, accountPrefix+name, first.Namespace, f.Namespace)

		o := newOperatorRunner(t, f, binary, fastElection(), account, config.AreaRunners)
		o.configure(map[string]any{
			"namespace": first.Namespace, "operatorUID": first.OperatorUID, "namespaces": []string{f.Namespace},
			"shard": map[string]any{"name": name, "operators": count},
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
