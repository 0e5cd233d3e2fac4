// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e }, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

var errLost = errors.New("connection reset by peer")

// world is one namespace, whose controllers make a pass when a test says so.
type world struct {
	*testing.T

	namespace string
	addresses *pools.AddressRegistry
	recorder  *events.FakeRecorder
	templates *claims.Templates
	claims    *claims.Claims
	// lost has status writes reach the API server, and their answers lost.
	lost bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()

	w := &world{T: t, namespace: env.Namespace(t), recorder: events.NewFakeRecorder(100)}
	w.start()

	return w
}

// start is what a new process begins with.
func (w *world) start() {
	w.Helper()

	plain, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		w.Fatal(err)
	}

	c := interceptor.NewClient(plain, interceptor.Funcs{SubResourceApply: func(
		ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
	) error {
		err := c.SubResource(sub).Apply(ctx, obj, opts...)
		if w.lost && err == nil {
			return errLost
		}

		return err
	}})

	w.addresses = pools.New()
	registry := claims.NewRegistry(w.addresses)
	w.addresses.ReadPoolsFrom(claims.PoolReader(plain, registry))
	w.addresses.ReadFrom(claims.Reader(plain, registry))

	if err := w.addresses.Rebuild(w.Context()); err != nil {
		w.Fatal(err)
	}

	w.templates = &claims.Templates{Client: c, Live: plain, Addresses: w.addresses, Registry: registry, Clock: clock.RealClock{}}
	w.claims = &claims.Claims{
		Client: c, Live: plain, Addresses: w.addresses, Registry: registry, Recorder: w.recorder, Clock: clock.RealClock{},
	}
}

// template makes one with a pool of two addresses, in a cluster of its own.
func (w *world) template() *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	env.Create(w.T, &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderKubeVirt, KubeVirt: &v1alpha1.KubeVirtCluster{Namespace: w.namespace, Network: "machines"},
		},
	})

	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "small"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: w.namespace},
			Template: v1alpha1.TemplateSource{KubeVirt: &v1alpha1.KubeVirtTemplate{
				ContainerDisk: &v1alpha1.ContainerDisk{Image: "registry.example.com/runner:1"},
			}},
			Resources: v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
			Network: &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
				Pool: &v1alpha1.AddressPool{
					Addresses: []v1alpha1.AddressRange{"10.0.0.10-10.0.0.11"}, PrefixLengthV4: 24, Gateway: []v1alpha1.IPAddress{"10.0.0.1"},
				},
			}},
		},
	}
	env.Create(w.T, template)
	w.pass(w.templates, template)

	return template
}

// claim makes one of the template "small".
func (w *world) claim(name string) *v1alpha1.MachineClaim {
	w.Helper()

	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Finalizers: []string{"example.com/test"}},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef:    v1alpha1.LocalObjectReference{Name: "small"},
			WorkloadConfig: v1alpha1.Workload{Type: "generic", Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{Source: "nightly", Command: []string{"true"}}}},
		},
	}
	env.Create(w.T, claim)

	return claim
}

// pass is one pass over an object, which is read again after it if it is there still.
func (w *world) pass(r reconcile.Reconciler, obj client.Object) reconcile.Result {
	w.Helper()

	result, err := r.Reconcile(w.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
	if err != nil && !errors.Is(err, errLost) {
		w.Fatal(err)
	}

	w.read(obj)

	return result
}

func (w *world) read(obj client.Object) {
	w.Helper()

	err := env.Client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj)
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
}

// has checks which addresses a claim has on record, and why.
func (w *world) has(claim *v1alpha1.MachineClaim, reason string, addresses ...string) {
	w.Helper()
	w.read(claim)

	var got []string
	if claim.Status.NetworkInfo != nil {
		got = claim.Status.NetworkInfo.Addresses
	}

	said := ""
	if c := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated); c != nil {
		said = c.Reason
	}

	if !slices.Equal(got, addresses) || said != reason {
		w.Errorf("%s has %v, %q; want %v, %q", claim.Name, got, said, addresses, reason)
	}
}

// status changes a claim's status as somebody else does.
func (w *world) status(claim *v1alpha1.MachineClaim, edit func(*v1alpha1.MachineClaimStatus)) {
	w.Helper()
	w.read(claim)
	edit(&claim.Status)

	if err := env.Client.Status().Update(w.Context(), claim); err != nil {
		w.Fatal(err)
	}
}

// Each claim gets an address of its own, the third one waits, and gets what the first one lets go
// of when its machine is gone, not before.
func TestClaimsGetAddresses(t *testing.T) {
	w := newWorld(t)
	w.template()

	a, b, c := w.claim("a"), w.claim("b"), w.claim("c")
	for _, claim := range []*v1alpha1.MachineClaim{a, b, c} {
		w.pass(w.claims, claim)
	}

	w.has(a, "Allocated", "10.0.0.10/24")
	w.has(b, "Allocated", "10.0.0.11/24")
	w.has(c, alloc.ReasonExhausted)

	if err := env.Client.Delete(w.Context(), a); err != nil {
		t.Fatal(err)
	}

	w.pass(w.claims, a)
	w.pass(w.claims, c)
	w.has(c, alloc.ReasonExhausted)
	w.has(a, "Allocated", "10.0.0.10/24")

	w.status(a, func(s *v1alpha1.MachineClaimStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionVMCleanedUp, Status: metav1.ConditionTrue, Reason: "Deleted",
		})
	})
	w.pass(w.claims, a)
	w.has(a, "")
	w.pass(w.claims, c)
	w.has(c, "Allocated", "10.0.0.10/24")
}

// A status that was written although its answer was lost keeps its address: after another pass, and
// in a new process.
func TestAnAnswerIsLost(t *testing.T) {
	w := newWorld(t)
	w.template()

	a, b := w.claim("a"), w.claim("b")
	w.lost = true
	w.pass(w.claims, a)
	w.lost = false
	w.pass(w.claims, a)
	w.pass(w.claims, b)
	w.has(a, "Allocated", "10.0.0.10/24")
	w.has(b, "Allocated", "10.0.0.11/24")

	w.start()

	for _, claim := range []*v1alpha1.MachineClaim{b, a} {
		w.pass(w.claims, claim)
	}

	w.has(a, "Allocated", "10.0.0.10/24")
	w.has(b, "Allocated", "10.0.0.11/24")
}

// Of two claims with one address on record by somebody's hand, the later one is told so, and both
// keep what their machines may have.
func TestAnAddressOnRecordTwice(t *testing.T) {
	w := newWorld(t)
	w.template()

	a, b := w.claim("a"), w.claim("b")
	w.pass(w.claims, a)
	w.status(b, func(s *v1alpha1.MachineClaimStatus) { s.NetworkInfo = a.Status.NetworkInfo.DeepCopy() })

	if result := w.pass(w.claims, b); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("looks again in %s", result.RequeueAfter)
	}

	w.pass(w.claims, a)
	w.has(a, "Allocated", "10.0.0.10/24")
	w.has(b, claims.ReasonAddressConflict, "10.0.0.10/24")
}

// A claim that is gone without the operator's doing leaves nothing, and one of its name that is new
// keeps its own.
func TestAClaimIsGone(t *testing.T) {
	w := newWorld(t)
	w.template()

	old := w.claim("a")
	w.pass(w.claims, old)

	old.Finalizers = nil
	if err := env.Client.Update(w.Context(), old); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Delete(w.Context(), old); err != nil {
		t.Fatal(err)
	}

	claim := w.claim("a")
	w.pass(w.claims, claim)
	w.has(claim, "Allocated", "10.0.0.11/24") // the old one's machine may have the first

	claim.Finalizers = nil
	if err := env.Client.Update(w.Context(), claim); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Delete(w.Context(), claim); err != nil {
		t.Fatal(err)
	}

	w.pass(w.claims, claim)

	if left := w.addresses.Owners("MachineClaim " + w.namespace + "/a/"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A template that loses its pool takes the addresses of machines that have not started, and of no
// other one; a machine that runs without an address gets none.
func TestATemplateLosesItsPool(t *testing.T) {
	w := newWorld(t)
	template := w.template()

	running, waiting := w.claim("running"), w.claim("waiting")
	w.pass(w.claims, running)

	now := metav1.NowMicro()
	w.status(waiting, func(s *v1alpha1.MachineClaimStatus) { s.Times = &v1alpha1.MachineTimes{Started: &now} })
	w.pass(w.claims, waiting)
	w.has(waiting, "")

	template.Spec.Network = nil
	if err := env.Client.Update(w.Context(), template); err != nil {
		t.Fatal(err)
	}

	w.pass(w.templates, template)
	w.pass(w.claims, running)
	w.has(running, "Allocated", "10.0.0.10/24")

	if c := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressPoolReady); c != nil {
		t.Errorf("the template says %s %s: %s", c.Type, c.Reason, c.Message)
	}

	late := w.claim("late")
	w.pass(w.claims, late)
	w.has(late, "")
}

// What keeps a template's pool from giving addresses is said on the template and on its claims.
func TestTemplatesSayWhatIsWrong(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		spoil  func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.HypervisorCluster)
		reason string
		says   string
		claim  string
	}{
		"no such cluster": {
			spoil: func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.HypervisorCluster) {
				t.Spec.HypervisorClusterRef.Name = "nowhere"
			},
			reason: "ClusterNotFound", says: `no HypervisorCluster "nowhere"`,
		},
		"the pod network": {
			spoil: func(_ *v1alpha1.HypervisorMachineTemplate, c *v1alpha1.HypervisorCluster) {
				c.Spec.KubeVirt.Network = ""
			},
			reason: claims.ReasonPoolInvalid, says: "NetworkAttachmentDefinition", claim: claims.ReasonPoolInvalid,
		},
		"a namespace that is not allowed": {
			spoil: func(_ *v1alpha1.HypervisorMachineTemplate, c *v1alpha1.HypervisorCluster) {
				c.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"others"}}}
			},
			reason: "NamespaceNotAllowed", says: "allowedNamespaces",
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			w := newWorld(t)
			template := w.template()

			var cluster v1alpha1.HypervisorCluster
			if err := env.Client.Get(t.Context(), client.ObjectKey{Name: w.namespace}, &cluster); err != nil {
				t.Fatal(err)
			}

			tt.spoil(template, &cluster)

			if err := errors.Join(env.Client.Update(t.Context(), &cluster), env.Client.Update(t.Context(), template)); err != nil {
				t.Fatal(err)
			}

			w.pass(w.templates, template)

			c := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressPoolReady)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
				t.Errorf("the template says %+v; want %s: ...%s", c, tt.reason, tt.says)
			}

			claim := w.claim("a")
			w.pass(w.claims, claim)
			w.has(claim, tt.claim)
		})
	}
}
