// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/networking/dns"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

const (
	nodesZone  = "nodes.example.com"
	reverseV4  = "0.0.10.in-addr.arpa"
	reverseV6  = "8.b.d.0.1.0.0.2.ip6.arpa"
	reverseTen = "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0." + reverseV6 // of 2001:db8::a
)

// newDNSFixture returns a fixture whose machines have names at a real DNS server. Registrations are
// cluster-scoped, so its tests run alone.
func newDNSFixture(t *testing.T) (*fixture, *dnstest.Server) {
	t.Helper()

	server := dnstest.StartBIND(t, dnstest.Config{Zones: []string{nodesZone, reverseV4, reverseV6}})
	w := &fixture{t: t, namespace: env.Namespace(t)}
	w.secretReader = func(_ context.Context, ref hfv1.SecretKeySelector, _ credential.Destination) (string, error) {
		return map[string]string{"keyName": dnstest.KeyName, "key": server.Key}[ref.Key], nil
	}

	value := func(key string) hfv1.SecretValueSource {
		return hfv1.SecretValueSource{SecretKeyRef: hfv1.SecretKeySelector{Name: "tsig", Key: key}}
	}
	w.must(env.Client.Create(t.Context(), &hfv1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: hfv1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: "https://pve.example.com:8006/api2/json",
			Credentials: hfv1.HypervisorCredentials{TokenID: new(value("id")), TokenSecret: new(value("secret"))},
			DNS: &hfv1.HypervisorDNS{Domain: nodesZone, RegisterVMs: true, DNSProvider: &hfv1.DNSProvider{
				Type: "rfc2136", Server: server.Addr, Zones: []string{nodesZone, reverseV4, reverseV6},
				Credentials: map[string]hfv1.SecretValueSource{"keyName": value("keyName"), "key": value("key")},
			}},
		},
	}))
	w.watchAddresses()
	w.startWithCleanup()

	return w, server
}

// createNamedPool creates a pool of one machine with addresses of both families and a DNS name.
func (w *fixture) createNamedPool() *infrav1.KubevirtNodePool {
	pool := w.newNodePool("named", 1, "10.0.0.10/32", "2001:db8::a/128")
	pool.Spec.BootstrapNetworkConfig.PrefixLengthV6 = 64
	pool.Spec.DNS = &infrav1.KubevirtNodePoolDNS{HypervisorClusterRef: infrav1.LocalObjectReference{Name: w.namespace}}

	return pool
}

// setRunning sets the status of a VirtualMachine like KubeVirt when it runs.
func (w *fixture) setRunning(name string) {
	w.t.Helper()

	vm := kubevirt.NewObject(kubevirt.VirtualMachineKind())
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, vm))

	before := vm.DeepCopy()
	w.must(unstructured.SetNestedMap(vm.Object, map[string]any{
		"created": true, "ready": true, "printableStatus": "Running",
		"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	}, "status"))
	w.must(env.Client.Status().Patch(w.t.Context(), vm, client.MergeFrom(before)))
}

// waitForOnlyMachine waits until one machine that is not being deleted has a VirtualMachine, and returns it.
// It ignores the machine not.
func (w *fixture) waitForOnlyMachine(not string) *infrav1.KubevirtMachine {
	w.t.Helper()

	var found *infrav1.KubevirtMachine

	w.waitUntil("one machine has a VirtualMachine", func() bool {
		for _, m := range w.listMachines() {
			if m.DeletionTimestamp == nil && m.Name != not && meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionVMCreated) {
				found = &m
			}
		}

		return found != nil
	})

	return found
}

// waitForMachineCondition waits until a condition of a machine is "STATUS REASON", and returns its message.
// An empty text waits until the machine does not have the condition.
func (w *fixture) waitForMachineCondition(name, condition, want string) string {
	w.t.Helper()

	var got metav1.Condition

	w.waitUntil(fmt.Sprintf("%s of %s is %q", condition, name, want), func() bool {
		var m infrav1.KubevirtMachine
		w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &m))

		got = metav1.Condition{}
		if c := meta.FindStatusCondition(m.Status.Conditions, condition); c != nil {
			got = *c
		}

		return strings.TrimSpace(string(got.Status)+" "+got.Reason) == want
	})

	return got.Message
}

// waitForRecords waits until the pool's only addresses and the machine's name resolve to each other, or to
// nothing.
func (w *fixture) waitForRecords(server *dnstest.Server, fqdn string, there bool) {
	w.t.Helper()

	want := map[string][]string{
		"A": {"10.0.0.10"}, "AAAA": {"2001:db8::a"}, "PTR v4": {fqdn + "."}, "PTR v6": {fqdn + "."},
	}
	if !there {
		want = map[string][]string{"A": {}, "AAAA": {}, "PTR v4": {}, "PTR v6": {}}
	}

	var diff string

	defer func() {
		if w.t.Failed() {
			w.t.Log(diff)
		}
	}()

	w.waitUntil("records of "+fqdn, func() bool {
		got := map[string][]string{
			"A": server.Lookup(w.t, fqdn, "A"), "AAAA": server.Lookup(w.t, fqdn, "AAAA"),
			"PTR v4": server.Lookup(w.t, "10."+reverseV4, "PTR"), "PTR v6": server.Lookup(w.t, reverseTen, "PTR"),
		}
		diff = cmp.Diff(want, got)

		return diff == ""
	})
}

// A machine is registered in DNS with all its addresses when it is Ready. It is removed from DNS before
// another machine gets its addresses, even if the DNS server is unreachable in the meantime.
func TestKubevirtMachinesHaveNames(t *testing.T) { //nolint:paralleltest // see newDNSFixture
	w, server := newDNSFixture(t)
	pool := w.createNamedPool()
	w.createPool(pool)

	first := w.waitForOnlyMachine("")
	w.waitForMachineCondition(first.Name, hfv1.ConditionDNSRegistered, "") // it does not run yet
	w.setRunning(first.Name)
	w.waitForMachineCondition(first.Name, hfv1.ConditionDNSRegistered, "True "+dns.ReasonRegistered)
	w.waitForRecords(server, first.Name+"."+nodesZone, true)

	marks := strings.Join(server.ListRecords(t, nodesZone), "\n")
	if !strings.Contains(marks, "kubevirtmachine="+w.namespace+"/"+first.Name) {
		t.Errorf("no ownership record names the machine:\n%s", marks)
	}

	// The DNS server stops and the machine is deleted, so another machine waits for the addresses.
	server.Stop(t)
	w.must(env.Client.Delete(t.Context(), first))
	w.waitUntil("the VirtualMachine is deleted", func() bool {
		return !slices.ContainsFunc(w.listVirtualMachines(), func(vm unstructured.Unstructured) bool { return vm.GetName() == first.Name })
	})

	w.waitUntil("the machine reports what it waits for", func() bool {
		return strings.Contains(w.waitForMachineCondition(first.Name, infrav1.ConditionDNSRemoved, "False RecordsLeft"), dns.ReasonUnreachable)
	})
	w.waitForCondition(pool, infrav1.ConditionIPPoolExhausted, "True PoolExhausted: waiting for an address: 1 machine")
	w.restart() // the next leader also keeps the addresses
	w.waitForCondition(pool, infrav1.ConditionIPPoolExhausted, "True PoolExhausted: waiting for an address: 1 machine")

	server.Start(t)

	second := w.waitForOnlyMachine(first.Name)
	w.setRunning(second.Name)
	w.waitForMachineCondition(second.Name, hfv1.ConditionDNSRegistered, "True "+dns.ReasonRegistered)
	w.waitForRecords(server, second.Name+"."+nodesZone, true)

	if left := server.Lookup(t, first.Name+"."+nodesZone, "A"); len(left) > 0 {
		t.Errorf("%s resolves to %v of another machine", first.Name, left)
	}

	// The pool gets another domain, and then none. The change applies to existing machines.
	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.DNS.Domain = "a." + nodesZone })
	w.waitForRecords(server, second.Name+".a."+nodesZone, true)

	// At another cluster, another registration has the records.
	var cluster hfv1.HypervisorCluster
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Name: w.namespace}, &cluster))
	w.must(env.Client.Create(t.Context(), &hfv1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-2"}, Spec: cluster.Spec,
	}))
	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.DNS.HypervisorClusterRef.Name = w.namespace + "-2" })
	w.waitUntil("the other cluster has the registration", func() bool {
		var reg hfv1.DNSRegistration
		err := env.Client.Get(t.Context(), client.ObjectKey{Name: dns.RegistrationName(second)}, &reg)

		return err == nil && reg.Spec.HypervisorCluster == w.namespace+"-2" && reg.Status.RegisteredAt != nil
	})
	w.waitForRecords(server, second.Name+".a."+nodesZone, true)

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.DNS = nil })
	w.waitForRecords(server, second.Name+".a."+nodesZone, false)
	w.waitForMachineCondition(second.Name, hfv1.ConditionDNSRegistered, "")

	// The message names a missing cluster.
	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.DNS = &infrav1.KubevirtNodePoolDNS{HypervisorClusterRef: infrav1.LocalObjectReference{Name: "absent"}}
	})

	if message := w.waitForMachineCondition(second.Name, hfv1.ConditionDNSRegistered, "False ClusterNotFound"); !strings.Contains(message, "absent") {
		t.Errorf("the message does not name the cluster: %s", message)
	}

	w.must(env.Client.Delete(t.Context(), pool))
	w.waitUntil("no machine is left", func() bool { return len(w.listMachines()) == 0 })
}
