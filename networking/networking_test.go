// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/networking"
	"github.com/hyperfleet/hyperfleet/networking/dns"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const (
	// waitTimeout limits each wait.
	waitTimeout  = time.Minute
	pollInterval = 50 * time.Millisecond
)

// env is the API server of this package's tests. It has the KubeVirt kinds but no controllers for them, so
// a VirtualMachine does not change after its creation, and is removed at once when it is deleted.
var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.ForArea("networking"), kube.WithSetup(crds.Install))
}

// fixture is a fixture with a namespace and the controllers of the area, which the test can restart.
type fixture struct {
	t         testing.TB
	namespace string
	stopArea  func()
	// secretReader reads credentials of DNS services. If it is nil, there are no credentials.
	secretReader dns.SecretReader
	// wrapManager returns the manager with which the area is set up. It may be nil.
	wrapManager func(ctrl.Manager) ctrl.Manager
	// registry has the metrics of the area that was started last.
	registry *prometheus.Registry
}

func newFixture(t testing.TB) *fixture {
	t.Helper()

	w := &fixture{t: t, namespace: env.Namespace(t)}
	w.watchAddresses()
	w.startWithCleanup()

	return w
}

// startWithCleanup starts the area until the test ends.
func (w *fixture) startWithCleanup() {
	w.t.Helper()
	w.startArea()
	w.t.Cleanup(func() { w.stopArea() })
}

var errNoSecrets = errors.New("there are no secrets here")

// startArea starts the area like a new process.
func (w *fixture) startArea() {
	w.t.Helper()

	secret := w.secretReader
	if secret == nil {
		secret = func(context.Context, hfv1.SecretKeySelector, credential.Destination) (string, error) {
			return "", errNoSecrets
		}
	}

	w.registry = prometheus.NewRegistry()
	area := &networking.Area{
		Config: config.Default().Networking, Registry: w.registry, Clock: clock.RealClock{},
		Log: slog.New(slog.DiscardHandler), OperatorUID: w.namespace,
		Secret: secret,
	}

	w.stopArea = env.StartManager(w.t, w.namespace, func(ctx context.Context, mgr ctrl.Manager) error {
		if w.wrapManager != nil {
			mgr = w.wrapManager(mgr)
		}

		return area.Setup(ctx, mgr)
	})
}

func (w *fixture) restart() {
	w.stopArea()
	w.startArea()
}

// watchAddresses fails the test if a machine gets an address that the status of another machine has.
func (w *fixture) watchAddresses() {
	w.t.Helper()

	watcher, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	must.Do(w.t, err)

	stream, err := watcher.Watch(w.t.Context(), &infrav1.KubevirtMachineList{}, client.InNamespace(w.namespace))
	must.Do(w.t, err)

	done := make(chan struct{})
	owners := map[string]string{}

	go func() {
		defer close(done)

		for event := range stream.ResultChan() {
			if m, ok := event.Object.(*infrav1.KubevirtMachine); ok {
				w.checkOwners(owners, m, event.Type == watch.Deleted)
			}
		}
	}()

	w.t.Cleanup(func() {
		stream.Stop()
		<-done
	})
}

// checkOwners compares one event with the current owners of the addresses.
func (w *fixture) checkOwners(owners map[string]string, m *infrav1.KubevirtMachine, gone bool) {
	has := map[string]bool{}

	for _, a := range m.Status.AllocatedBootstrapAddresses["eno101"] {
		a = m.Status.BootstrapNetwork + " " + a
		if other := owners[a]; other != "" && other != m.Name && !gone {
			w.t.Errorf("%s was allocated to %s while %s had it", a, m.Name, other)
		}

		has[a] = !gone
	}

	for a, owner := range owners {
		if owner == m.Name && !has[a] {
			delete(owners, a)
		}
	}

	for a, held := range has {
		if held {
			owners[a] = m.Name
		}
	}
}

func (w *fixture) waitUntil(what string, holds func() bool) {
	w.t.Helper()

	deadline := time.Now().Add(waitTimeout)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting until %s", what)
		}

		time.Sleep(pollInterval)
	}
}

// newNodePool returns a pool with static IPv4 addresses.
func (w *fixture) newNodePool(name string, replicas int32, addresses ...infrav1.AddressRange) *infrav1.KubevirtNodePool {
	attach := false

	return &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: infrav1.KubevirtNodePoolSpec{
			Replicas: replicas, AttachDefaultNetwork: &attach,
			AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "machines"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
				Addresses: addresses, Gateway: []infrav1.IPAddress{"10.0.0.1"}, PrefixLengthV4: 16,
			},
			RootVolume: infrav1.KubevirtRootVolume{
				DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"},
			},
			Compute: &infrav1.KubevirtCompute{Cores: 1, Memory: resource.MustParse("1Gi")},
		},
	}
}

func (w *fixture) createPool(pool *infrav1.KubevirtNodePool) {
	w.t.Helper()
	w.must(env.Client.Create(w.t.Context(), pool))
}

func (w *fixture) must(err error) {
	w.t.Helper()

	must.Do(w.t, err)
}

// patchObject changes an object.
func patchObject[T client.Object](w *fixture, object T, how func(T)) {
	w.t.Helper()

	w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object))

	before, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		w.t.Fatal("no object")
	}

	how(object)
	w.must(env.Client.Patch(w.t.Context(), object, client.MergeFrom(before)))
}

// formatCondition returns a pool's condition as "STATUS REASON: MESSAGE".
func (w *fixture) formatCondition(pool *infrav1.KubevirtNodePool, name string) string {
	w.t.Helper()

	w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(pool), pool))

	c := meta.FindStatusCondition(pool.Status.Conditions, name)
	if c == nil || c.ObservedGeneration != pool.Generation {
		return ""
	}

	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (w *fixture) waitForCondition(pool *infrav1.KubevirtNodePool, condition, want string) {
	w.t.Helper()

	deadline := time.Now().Add(waitTimeout)
	for !strings.Contains(w.formatCondition(pool, condition), want) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s of %s is %q, want %q", condition, pool.Name, w.formatCondition(pool, condition), want)
		}

		time.Sleep(pollInterval)
	}
}

func (w *fixture) listMachines() []infrav1.KubevirtMachine {
	w.t.Helper()

	var list infrav1.KubevirtMachineList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	return list.Items
}

// countAllocated counts the machines with addresses and a VirtualMachine.
func (w *fixture) countAllocated() int {
	n := 0

	for _, m := range w.listMachines() {
		made := meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionVMCreated)
		if len(m.Status.AllocatedBootstrapAddresses["eno101"]) > 0 && made && m.DeletionTimestamp == nil {
			n++
		}
	}

	return n
}

func (w *fixture) listVirtualMachines() []unstructured.Unstructured {
	w.t.Helper()

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kubevirt.VirtualMachineKind())
	w.must(env.Client.List(w.t.Context(), list, client.InNamespace(w.namespace)))

	return list.Items
}

// Concurrent reconciles create and delete many machines of one pool, with restarts in between. No address
// is allocated twice, and all released addresses are allocated again.
func TestManyMachinesOverRestarts(t *testing.T) {
	t.Parallel()
	testOverRestarts(t, 16)
}

func TestSoakManyMachinesOverRestarts(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	testOverRestarts(t, 50)
}

// testOverRestarts runs the test with the given number of addresses and a few more machines.
func testOverRestarts(t *testing.T, addresses int) {
	t.Helper()

	const late = 4

	machines := addresses + late
	w := newFixture(t)
	pool := w.newNodePool("many", int32(machines), infrav1.AddressRange(fmt.Sprintf("10.0.0.10-10.0.0.%d", 10+addresses-1)))
	pool.Spec.ClusterName = "prod"
	w.createPool(pool)
	w.waitUntil("some machines have addresses", func() bool { return w.countAllocated() > addresses/5 })
	w.restart()
	w.waitUntil("all addresses are in use", func() bool { return w.countAllocated() == addresses })
	w.waitForCondition(pool, infrav1.ConditionIPPoolExhausted, fmt.Sprintf("True PoolExhausted: waiting for an address: %d machines", late))
	w.waitForCondition(pool, infrav1.ConditionAddressesFewerThanReplicas, fmt.Sprintf("True TooFewAddresses: the pool has addresses for %d machines", addresses))

	isExhausted := func(want float64) func() bool {
		return func() bool { return scrape.SumOf(t, w.registry, "kubevirt_ippool_exhausted", `cluster="prod"`) == want }
	}
	w.waitUntil("the metric says that the pool is exhausted", isExhausted(1))

	// Waiting machines get the addresses of deleted machines.
	for i, m := range w.listMachines() {
		if len(m.Status.AllocatedBootstrapAddresses) > 0 && i%3 == 0 {
			w.must(env.Client.Delete(t.Context(), &m))
		}
	}

	w.restart()
	w.waitUntil("all addresses are in use again", func() bool { return w.countAllocated() == addresses && len(w.listMachines()) == machines })

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Addresses = append(p.Spec.BootstrapNetworkConfig.Addresses, "10.0.1.0/24")
	})
	w.waitUntil("all machines have addresses", func() bool { return w.countAllocated() == machines })
	w.waitForCondition(pool, infrav1.ConditionIPPoolExhausted, "False AddressesLeft")
	w.waitUntil("the metric says that the pool has addresses", isExhausted(0))

	if n := len(w.listVirtualMachines()); n != machines {
		t.Errorf("%d VirtualMachines", n)
	}

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 5 })
	w.waitUntil("five machines are left", func() bool { return len(w.listMachines()) == 5 && len(w.listVirtualMachines()) == 5 })
	w.must(env.Client.Delete(t.Context(), pool))
	w.waitUntil("no machine is left", func() bool { return len(w.listMachines()) == 0 && len(w.listVirtualMachines()) == 0 })
}

func TestBadNetworkConfig(t *testing.T) {
	t.Parallel()

	w := newFixture(t)

	for _, tc := range []struct {
		name            string
		change          func(*infrav1.KubevirtBootstrapNetworkConfig)
		condition, want string
	}{
		{
			"reversed-range", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.Addresses = []infrav1.AddressRange{"10.0.0.20-10.0.0.10"}
			}, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses",
		},
		{
			"exclusion-outside", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.ExcludedAddresses = []infrav1.AddressRange{"10.9.0.0/24"}
			}, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses",
		},
		{
			"all-excluded", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.ExcludedAddresses = []infrav1.AddressRange{"10.0.0.0/16"}
			}, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses",
		},
		{
			"gateway-in-no-subnet", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.Gateway = []infrav1.IPAddress{"172.16.0.1"}
			}, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses",
		},
		{
			"no-prefix-length", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.PrefixLengthV4, c.Gateway = 0, nil
			}, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses",
		},
		{
			"another-network", func(c *infrav1.KubevirtBootstrapNetworkConfig) { c.Network = "blue" },
			infrav1.ConditionValidNetworkConfig, "False NetworkNotFound",
		},
		{
			"data-without-interface", func(c *infrav1.KubevirtBootstrapNetworkConfig) {
				c.NetworkData = `{"links": [], "networks": [], "services": []}`
			}, infrav1.ConditionTemplateReady, "False InvalidNetworkData",
		},
		{
			"data-of-no-format", func(c *infrav1.KubevirtBootstrapNetworkConfig) { c.NetworkData = "{not: [yaml" },
			infrav1.ConditionTemplateReady, "False InvalidNetworkData",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			pool := w.newNodePool(tc.name, 1, "10.0.0.10-10.0.0.19")
			pool.Spec.AdditionalNetworks[0].Name = tc.name // a network of its own
			if tc.name == "another-network" {
				pool.Spec.AdditionalNetworks = append(pool.Spec.AdditionalNetworks, infrav1.KubevirtNetwork{Name: "second"})
			}

			tc.change(pool.Spec.BootstrapNetworkConfig)
			w.createPool(pool)
			w.waitForCondition(pool, tc.condition, tc.want)
			w.waitForCondition(pool, "Stalled", "True")

			if n := w.countMachines(tc.name); n != 0 {
				t.Errorf("%d machines were created", n)
			}

			w.must(env.Client.Delete(t.Context(), pool))
			w.waitUntil("the pool is deleted", func() bool {
				return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool))
			})
		})
	}
}

// countMachines counts a pool's machines.
func (w *fixture) countMachines(pool string) int {
	n := 0

	for _, m := range w.listMachines() {
		if m.Labels[infrav1.LabelNodePool] == pool {
			n++
		}
	}

	return n
}

func TestOverlappingPools(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	first, second := w.newNodePool("first", 1, "10.0.0.10-10.0.0.19"), w.newNodePool("second", 1, "10.0.0.15-10.0.0.29")
	elsewhere := w.newNodePool("elsewhere", 1, "10.0.0.10-10.0.0.19")
	elsewhere.Spec.AdditionalNetworks[0].Name = "other"

	w.createPool(first)
	w.waitForCondition(first, infrav1.ConditionMachinesScaled, "True")
	w.createPool(second)
	w.createPool(elsewhere)
	w.waitForCondition(second, infrav1.ConditionValidNetworkConfig, "False OverlappingAddresses")
	w.waitForCondition(second, infrav1.ConditionValidNetworkConfig, "pool "+w.namespace+"/second overlaps pool "+w.namespace+"/first")
	w.waitForCondition(elsewhere, infrav1.ConditionValidNetworkConfig, "True")

	w.restart() // the older pool wins again

	patchObject(w, first, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Addresses = []infrav1.AddressRange{"10.0.0.10-10.0.0.14"}
	})
	w.waitForCondition(second, infrav1.ConditionValidNetworkConfig, "True")
	w.waitUntil("all machines have addresses", func() bool { return w.countAllocated() == 3 })
}
