// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/random"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/kubevirttest"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

var env *kube.Env

// maxParallel is the number of tests that run in parallel. The tests mostly wait for the API server and need
// little CPU time.
const maxParallel = "6"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", maxParallel); err != nil {
		panic(err)
	}

	kube.Main(m, &env, kube.WithScheme(virtv1.AddToScheme), kube.WithSetup(crds.Install))
}

func newHarness(t *testing.T) conformance.Harness {
	t.Helper()

	return newSite(t, simkubevirt.Delays{}).harness()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, newHarness)
}

// A process that ends before it sends a call changes nothing. This is the same boundary as the one after the
// previous call, so the test leaves out the boundaries before calls.
func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.RunCrashes(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		h := newHarness(t)
		onCall := h.OnCall
		h.OnCall = func(f func(conformance.Boundary)) func() {
			return onCall(func(b conformance.Boundary) {
				if !b.Before {
					f(b)
				}
			})
		}

		return h
	})
}

// The process ends at each call, also at calls that only read.
func TestSoakCrashes(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	conformance.RunCrashesAtEveryCall(t, newHarness)
}

// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func TestProperty24ProviderInterface(t *testing.T) {
	t.Parallel()
	random.Property(t, newHarness)
}

const (
	gib   = 1 << 30
	image = "registry.example.com/linux:1"
	idMin = 100000
	// devicesPerNode is the number of the GPUs of a node.
	devicesPerNode = 1
)

// site is a test fixture: a namespace with a simulated KubeVirt.
type site struct {
	t         testing.TB
	sim       *simkubevirt.Cluster
	namespace string
	nodes     []string

	calls conformance.CallHooks

	mu sync.Mutex
	// occupied holds the names of machines of other owners.
	occupied map[string]bool
}

func newSite(t testing.TB, delays simkubevirt.Delays) *site {
	t.Helper()

	return newSiteWith(t, simkubevirt.Options{Delays: delays})
}

func newSiteWith(t testing.TB, options simkubevirt.Options) *site {
	t.Helper()

	s := &site{t: t, namespace: env.Namespace(t), occupied: map[string]bool{}}
	s.nodes = []string{s.namespace + "-node-1", s.namespace + "-node-2"}
	for _, node := range s.nodes {
		options.Nodes = append(options.Nodes, simkubevirt.Node{
			Name: node, CPU: 64, Memory: *resource.NewQuantity(256*gib, resource.BinarySI),
			Devices: map[corev1.ResourceName]int64{corev1.ResourceName(s.device()): devicesPerNode},
		})
	}

	options.Namespaces, options.Webhook = []string{s.namespace}, upstream.StartVirtAPI(t)
	s.sim = kubevirttest.New(t, env.Config, options)

	return s
}

// device returns the resource name of the nodes' GPUs. Instances of all namespaces that wait for a node count, so each test
// has a name of its own.
func (s *site) device() string { return "nvidia.com/" + s.namespace }

func (s *site) config() hypervisor.Config {
	return hypervisor.Config{
		Name: "lab", Namespace: s.namespace, Nodes: s.nodes, IDMin: idMin, IDMax: idMin + 99999,
	}
}

func (s *site) template() hypervisor.TemplateRef {
	return hypervisor.TemplateRef{Kind: hypervisor.TemplateImage, Name: image}
}

func newShape() hypervisor.Shape {
	return hypervisor.Shape{CPU: 2, Memory: 2 * gib, CloudInitSource: hypervisor.SourceNoCloud}
}

func (s *site) connect(tb conformance.TB, o hypervisor.Options) hypervisor.Connection {
	tb.Helper()

	o.WrapTransport = s.wrapTransport

	p, err := kubevirt.New(s.config(), o, env.Config)
	if err != nil {
		tb.Fatal(err)
	}

	return p
}

// wrapTransport runs the hooks of the cases before and after each call.
func (s *site) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") != "" {
			return next.RoundTrip(r)
		}

		boundary := conformance.Boundary{
			Before: true, Write: r.Method != http.MethodGet, Call: r.Method + " " + r.URL.Path,
		}
		s.calls.Run(boundary)

		if err := r.Context().Err(); err != nil {
			return nil, err
		}

		resp, err := next.RoundTrip(r)
		boundary.Before = false
		s.calls.Run(boundary)

		if ctxErr := r.Context().Err(); ctxErr != nil && err == nil {
			_ = resp.Body.Close()

			return nil, ctxErr
		}

		return resp, err
	})
}

func (s *site) harness() conformance.Harness {
	return conformance.Harness{
		Connect: s.connect, Template: s.template(), Shape: newShape(), IDMin: idMin,
		Device: s.device(), Devices: len(s.nodes) * devicesPerNode,
		PlacesAtStart: true, NamesHoldOwner: true,
		Inspect: s.inspect, OnCall: s.calls.Add, PowerOff: s.powerOff, OccupyID: s.occupyID, DeleteExternally: s.deleteExternally,
	}
}

// listAll lists the objects of the namespace. It does not use the test's context, because the test inspects
// the namespace after that context has ended.
func listAll[T client.ObjectList](s *site, into T) T {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := env.Client.List(ctx, into, client.InNamespace(s.namespace)); err != nil {
		s.t.Error(err)
	}

	return into
}

func (s *site) inspect() conformance.State {
	var (
		state   conformance.State
		foreign []virtv1.VirtualMachineSpec
	)

	instances, devices, used := map[string]bool{}, map[string][]string{}, map[string]int{}
	for _, v := range listAll(s, &virtv1.VirtualMachineInstanceList{}).Items {
		instances[v.Name] = v.IsRunning()

		// A node with more machines than devices would show one of its devices twice.
		for range v.Spec.Domain.Devices.GPUs {
			devices[v.Name] = append(devices[v.Name], fmt.Sprintf("%s/%d", v.Status.NodeName, used[v.Status.NodeName]%devicesPerNode))
			used[v.Status.NodeName]++
		}
	}

	for _, vm := range listAll(s, &virtv1.VirtualMachineList{}).Items {
		if s.isOccupied(vm.Name) {
			foreign = append(foreign, vm.Spec)

			continue
		}

		record, _ := kubevirt.ParseRecord(&vm)
		state.Machines = append(state.Machines, conformance.ObservedMachine{
			ID: record.ID, ClaimUID: record.MachineClaim.UID, OperatorUID: record.OperatorUID,
			Running: instances[vm.Name], Starts: s.sim.StartCount(vm.UID), Devices: devices[vm.Name],
		})
	}

	for _, secret := range listAll(s, &corev1.SecretList{}).Items {
		state.Seeds = append(state.Seeds, secret.Name)
	}

	raw, err := json.Marshal(foreign)
	if err != nil {
		panic(err)
	}

	state.Foreign = string(raw)

	return state
}

func (s *site) isOccupied(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.occupied[name]
}

// findVM returns the key and the VirtualMachine with the id. The VirtualMachine is nil if none exists.
func (s *site) findVM(id int) (types.NamespacedName, *virtv1.VirtualMachine) {
	vms := listAll(s, &virtv1.VirtualMachineList{}).Items
	for i := range vms {
		if record, err := kubevirt.ParseRecord(&vms[i]); err == nil && record.ID == id {
			return client.ObjectKeyFromObject(&vms[i]), &vms[i]
		}
	}

	return types.NamespacedName{}, nil
}

func (s *site) powerOff(id int) {
	if key, vm := s.findVM(id); vm != nil {
		if err := s.sim.PowerOff(context.Background(), key); err != nil {
			s.t.Error(err)
		}
	}
}

// occupyID creates a machine of another owner with the name that the machine of claim-1 would have.
func (s *site) occupyID(tb conformance.TB, id int) {
	tb.Helper()

	name := "claim-1-" + strconv.Itoa(id)

	s.mu.Lock()
	s.occupied[name] = true
	s.mu.Unlock()

	if err := env.Client.Create(tb.Context(), newForeignVM(s.namespace, name)); err != nil {
		tb.Fatal(err)
	}
}

func newForeignVM(namespace, name string) *virtv1.VirtualMachine {
	halted := virtv1.RunStrategyHalted
	vm := &virtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	vm.Spec.RunStrategy = &halted
	vm.Spec.Template = &virtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.Spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}

	return vm
}

// deleteExternally deletes a machine as a person does who also removes its finalizer. It deletes the instance,
// too, as Kubernetes' garbage collection does.
func (s *site) deleteExternally(tb conformance.TB, id int) {
	tb.Helper()

	key, vm := s.findVM(id)
	if vm == nil {
		return
	}

	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := client.IgnoreNotFound(env.Client.Delete(tb.Context(), vm)); err != nil {
		tb.Fatal(err)
	}

	if err := client.IgnoreNotFound(env.Client.Patch(tb.Context(), vm, patch)); err != nil {
		tb.Fatal(err)
	}

	if err := s.sim.ForceDeleteInstance(tb.Context(), key); err != nil {
		tb.Fatal(err)
	}
}
