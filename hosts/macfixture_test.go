// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	macplan "github.com/hyperfleet/hyperfleet/hosts/plan/mac"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
)

// macFixture is a namespace of Macs and a project at a simulated Scaleway.
type macFixture struct {
	t         *testing.T
	namespace string
	sim       *sim.Simulator
	clock     *testclock.FakeClock
	kind      *mac.Kind
	egress    *bounds.EgressPolicy
}

func newMacFixture(t *testing.T, opts sim.Options) *macFixture {
	t.Helper()

	w := &macFixture{t: t, namespace: env.Namespace(t), clock: testclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	opts.Clock = w.clock
	w.sim = sim.New(opts)

	server := httptest.NewServer(w.sim)
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		if v := w.sim.Violations(); len(v) > 0 {
			t.Errorf("a call violated Scaleway's contract: %v", v)
		}
	})

	w.createSecret("scaleway", map[string]string{
		infrav1.ScalewayAccessKey: sim.DefaultAccessKey, infrav1.ScalewaySecretKey: sim.DefaultSecretKey,
		infrav1.ScalewayProjectID: sim.DefaultProject, infrav1.ScalewayAPIURL: server.URL,
	})
	private, _ := machosttest.NewKey(t)
	w.createSecret("hosts", map[string]string{"key": private.Reveal(), "kubeconfig": "kubeconfig of " + t.Name(), "tailscale": "tskey"})
	w.egress = allowServer(t, server.URL)
	w.restart()

	return w
}

// allowServer allows a server, as an administrator would.
func allowServer(t *testing.T, server string) *bounds.EgressPolicy {
	t.Helper()

	out, err := bounds.NewEgressPolicy([]string{server}, nil)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// restart replaces the kind, as a restart of the operator would.
func (w *macFixture) restart() {
	w.kind = mac.New(mac.Options{APIReader: env.Client, Secrets: kubeSecrets(), Fleet: newMacConfig(), Clock: instantClock{w.clock}, Egress: w.egress})
}

// instantClock is a clock whose timers fire at once.
type instantClock struct{ *testclock.FakeClock }

func (instantClock) NewTimer(time.Duration) clock.Timer { return clock.RealClock{}.NewTimer(0) }

func newMacConfig() macplan.Config {
	return macplan.Config{
		MaxPods: 2, TartKubeletBinary: plan.NewText("kubelet"), TartTarball: plan.NewText("tart"),
		NodeExporterBinary: plan.NewText("exporter"),
	}
}

func kubeSecrets() machine.KubeSecrets { return machine.KubeSecrets{Reader: env.Client} }

func (w *macFixture) createSecret(name string, data map[string]string) {
	w.t.Helper()

	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, StringData: data}
	w.must(env.Client.Create(w.t.Context(), object))
}

// createMachine creates a machine.
func (w *macFixture) createMachine(name string, change func(*infrav1.ScalewayAppleSiliconMachineSpec)) {
	w.t.Helper()

	object := &infrav1.ScalewayAppleSiliconMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: infrav1.ScalewayAppleSiliconMachineSpec{
			FleetName: "macs", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "scaleway"}, SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
			SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"},
		},
	}
	if change != nil {
		change(&object.Spec)
	}

	w.must(env.Client.Create(w.t.Context(), object))
}

func (w *macFixture) getMachine(name string) *infrav1.ScalewayAppleSiliconMachine {
	w.t.Helper()

	var object infrav1.ScalewayAppleSiliconMachine
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &object))

	return &object
}

// runStep runs one step once, as package machine would, and returns the resulting reason or error.
func (w *macFixture) runStep(name string, run func(context.Context, *infrav1.ScalewayAppleSiliconMachine) step.Result) string {
	object := w.getMachine(name)
	steps := []step.Step[*infrav1.ScalewayAppleSiliconMachine]{{Condition: infrav1.ConditionProvisioned, Run: run}}

	operator, err := env.ClientAs("hyperfleet-hosts")
	w.must(err)

	_, err = step.ReconcileSteps(w.t.Context(), &step.Reconciler{Client: operator, Controller: "mac", Clock: w.clock}, object, steps, object)
	if err != nil {
		return "fail: " + err.Error()
	}

	return meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionProvisioned).Reason
}

func (w *macFixture) provision(name string) string {
	return w.runStep(name, func(ctx context.Context, object *infrav1.ScalewayAppleSiliconMachine) step.Result {
		return w.kind.Provision(ctx, object)
	})
}

func (w *macFixture) release(name string) string {
	return w.runStep(name, func(ctx context.Context, object *infrav1.ScalewayAppleSiliconMachine) step.Result {
		return w.kind.Release(ctx, object)
	})
}

// readBack reads a machine's facts back, as package machine does for a machine whose status was lost.
func (w *macFixture) readBack(name string) {
	w.requireResult(w.runStep(name, func(_ context.Context, object *infrav1.ScalewayAppleSiliconMachine) step.Result {
		w.kind.ReadBack(object)

		return step.Done()
	}), "Done")
}

func (w *macFixture) runFirstBoot(name string) string {
	return w.runStep(name, func(ctx context.Context, object *infrav1.ScalewayAppleSiliconMachine) step.Result {
		return w.kind.BeforeBoot(ctx, object)
	})
}

// updateStatus changes a machine's status, as package machine would.
func (w *macFixture) updateStatus(name string, change func(*infrav1.ScalewayAppleSiliconMachineStatus)) {
	w.t.Helper()

	object := w.getMachine(name)
	change(&object.Status)

	w.must(env.Client.Status().Update(w.t.Context(), object))
}

// requireResult checks the result of a reconcile.
func (w *macFixture) requireResult(got, want string) {
	w.t.Helper()

	if got != want {
		w.t.Fatalf("the reconcile ended with %q, want %q", got, want)
	}
}

// provisionFully provisions a machine until its server is delivered.
func (w *macFixture) provisionFully(name string) {
	w.t.Helper()

	for range 10 {
		if got := w.provision(name); got == "Done" {
			return
		}

		w.clock.Step(5 * time.Minute)
	}

	w.t.Fatalf("machine %s has no server: %s", name, w.provision(name))
}

func (w *macFixture) requireServers(want int) []sim.Server {
	w.t.Helper()

	got := w.sim.Servers()
	if len(got) != want {
		w.t.Fatalf("%d servers, want %d: %v", len(got), want, formatServers(got))
	}

	return got
}

func (w *macFixture) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

func formatServers(servers []sim.Server) []string {
	var out []string
	for _, s := range servers {
		out = append(out, fmt.Sprintf("%s (%s)", s.Name, s.Status))
	}

	return out
}

const post = http.MethodPost

// If a push is recorded but no job runs, the Mac is read from the API server, not from the cache.
func TestMacWithRecordedPushIsReadAgain(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 0, infrav1.HostRollout{})
	w.createMacFleet(infrav1.HostFleetSpec{})

	box := &infrav1.ScalewayAppleSiliconMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "box"}}
	w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(box), box))

	box.Status.Push = &infrav1.HostPush{Hash: "h", What: "Update", Started: metav1.Now()}
	w.must(env.Client.Status().Update(t.Context(), box))

	w.startOperator()

	w.eventually("a reconcile continues", func() string {
		w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(box), box))

		if meta.IsStatusConditionFalse(box.Status.Conditions, infrav1.ConditionProvisioned) {
			return ""
		}

		return fmt.Sprint(box.Status.Conditions)
	})
}
