// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// newProxmoxCluster returns a cluster whose machines get the bridge of their own template, unless network is set.
func newProxmoxCluster(name, network string) *v1alpha1.HypervisorCluster {
	secret := func(key string) *v1alpha1.SecretValueSource {
		return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "pve", Key: key}}
	}

	return &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: "https://pve.example.com:8006/api2/json", DefaultNetwork: network,
			Credentials: v1alpha1.HypervisorCredentials{TokenID: secret("tokenId"), TokenSecret: secret("tokenSecret")},
		},
	}
}

// newLibvirtCluster returns a cluster with a host for each network: the name of a bridge, network:NAME, or nothing.
func newLibvirtCluster(name string, networks ...string) *v1alpha1.HypervisorCluster {
	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.HypervisorClusterSpec{Provider: v1alpha1.ProviderLibvirt, Libvirt: &v1alpha1.LibvirtCluster{}},
	}

	for i, network := range networks {
		host := v1alpha1.LibvirtHost{Name: fmt.Sprint("host-", i+1), URI: "qemu+unix:///system", Bridge: network}
		if virtual, isVirtual := strings.CutPrefix(network, "network:"); isVirtual {
			host.Network, host.Bridge = virtual, ""
		}

		cluster.Spec.Libvirt.Hosts = append(cluster.Spec.Libvirt.Hosts, host)
	}

	return cluster
}

// newBridgeTemplate returns a template whose machines have addresses on a bridge, or on BRIDGE/VLAN. If the text is empty, the
// template names no bridge.
func newBridgeTemplate(
	namespace, name string, cluster *v1alpha1.HypervisorCluster, network string, addresses ...v1alpha1.AddressRange,
) *v1alpha1.HypervisorMachineTemplate {
	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: cluster.Name},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
			Network: &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
				Pool: &v1alpha1.AddressPool{Addresses: addresses, PrefixLengthV4: 16, Gateway: []v1alpha1.IPAddress{"10.0.0.1"}},
			}},
		},
	}

	switch cluster.Spec.Provider {
	case v1alpha1.ProviderProxmox:
		template.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateName: "debian"}
	case v1alpha1.ProviderLibvirt:
		template.Spec.Template.Libvirt = &v1alpha1.LibvirtTemplate{Volume: "debian.qcow2"}
	default:
		template.Spec.Template.External = &v1alpha1.ExternalTemplate{Name: "debian"}
	}

	bridge, vlan, hasVLAN := strings.Cut(network, "/")
	template.Spec.Network.Bridge = bridge

	if hasVLAN {
		var number int32
		if _, err := fmt.Sscan(vlan, &number); err != nil {
			panic(err)
		}

		template.Spec.Network.VLAN = &number
	}

	return template
}

// Pools that may be on one network do not overlap. Those of templates that are certainly on one network are one pool if they
// are equal.
func TestPoolsThatMayBeOnOneNetwork(t *testing.T) {
	t.Parallel()

	const shared, refused, separate = "shared", claims.ReasonPoolsOverlap, "separate"

	external := newProxmoxCluster("external", "")
	external.Spec.Provider = v1alpha1.ProviderExternal

	for name, tc := range map[string]struct {
		cluster *v1alpha1.HypervisorCluster
		// first and second are the networks of the templates, and want is what becomes of the second pool, if it is equal
		// to the first one.
		first, second, want string
	}{
		"Proxmox VE, the template's own bridge and another": {newProxmoxCluster("pve", ""), "", "vmbr0", refused},
		"a bridge, and then the template's own":             {newProxmoxCluster("pve", ""), "vmbr0", "", refused},
		"the template's own VLAN":                           {newProxmoxCluster("pve", ""), "", "vmbr0/20", refused},
		"a VLAN of the template's own bridge":               {newProxmoxCluster("pve", ""), "/20", "vmbr0/20", refused},
		"an access port of the VLAN":                        {newProxmoxCluster("pve", ""), "/20", "vmbr0", refused},
		"two VLANs":                                         {newProxmoxCluster("pve", ""), "/20", "vmbr0/30", separate},
		"the own bridges of two templates":                  {newProxmoxCluster("pve", ""), "", "", shared},
		"two bridges":                                       {newProxmoxCluster("pve", ""), "vmbr0", "vmbr1", separate},
		"the default of the cluster":                        {newProxmoxCluster("pve", "vmbr0"), "", "vmbr0", shared},
		"not the default of the cluster":                    {newProxmoxCluster("pve", "vmbr0"), "", "vmbr1", separate},
		"external, the provider's choice":                   {external, "", "lan", refused},
		"libvirt, the bridge of the hosts":                  {newLibvirtCluster("kvm", "br0", "br0"), "", "br0", shared},
		"another bridge than that of the hosts":             {newLibvirtCluster("kvm", "br0", "br0"), "", "br1", separate},
		"the virtual network of the hosts":                  {newLibvirtCluster("kvm", "network:default", "network:default"), "", "", shared},
		"a virtual network, and its bridge":                 {newLibvirtCluster("kvm", "network:default"), "", "virbr0", refused},
		"hosts with two bridges":                            {newLibvirtCluster("kvm", "br0", "br1"), "", "br1", refused},
		"hosts with a bridge and a network":                 {newLibvirtCluster("kvm", "br0", "network:default"), "br0", "", refused},
		"a host in user mode":                               {newLibvirtCluster("kvm", "br0", ""), "", "br0", shared},
		"all hosts in user mode":                            {newLibvirtCluster("kvm", "", ""), "", "br0", separate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := claims.NewRegistry(pools.New())
			first := registry.Set(newBridgeTemplate("ci", "first", tc.cluster, tc.first, "10.0.0.10-10.0.0.19"), tc.cluster, nil)
			second := registry.Set(newBridgeTemplate("ci", "second", tc.cluster, tc.second, "10.0.0.10-10.0.0.19"), tc.cluster, nil)

			got := second.Reason
			if got == "" {
				got = separate
			}

			if second.Pool == first.Pool {
				got = shared
			}

			if first.Reason != "" || got != tc.want {
				t.Errorf("the pools on %s and %s are %s, want %s: %s", first.Network, second.Network, got, tc.want, second.Message)
			}
		})
	}
}

// A template of Proxmox VE without a bridge may be on the bridge of another template. The newer of their pools is refused with
// the other template and the fix in the message, and is accepted when the other one goes or gets a bridge of its own.
func TestRefusedPoolIsTriedAgain(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := newProxmoxCluster(w.namespace+"-pve", "")
	env.Create(t, cluster)

	own := newBridgeTemplate(w.namespace, "own", cluster, "", "10.0.0.10-10.0.0.19")
	env.Create(t, own)
	w.waitForTemplateCondition(own, "True Ready")

	named := newBridgeTemplate(w.namespace, "named", cluster, "vmbr0", "10.0.0.19-10.0.0.29")
	env.Create(t, named)

	message := w.waitForTemplateCondition(named, "False PoolsOverlap")
	for _, part := range []string{
		"HypervisorMachineTemplate " + w.namespace + "/own", "at 10.0.0.19", "set network.bridge in all these templates", "different addresses",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("the message lacks %q: %s", part, message)
		}
	}

	// The fix of the message.
	patchObject(w, own, func(m *v1alpha1.HypervisorMachineTemplate) { m.Spec.Network.Bridge = "vmbr1" })
	w.waitForTemplateCondition(named, "True Ready")
	w.waitForTemplateCondition(own, "True Ready")

	patchObject(w, own, func(m *v1alpha1.HypervisorMachineTemplate) { m.Spec.Network.Bridge = "" })

	if message := w.waitForTemplateCondition(own, "False PoolsOverlap"); !strings.Contains(message, w.namespace+"/named") {
		t.Errorf("the message does not name the other template: %s", message)
	}

	must.Do(t, env.Client.Delete(t.Context(), named))
	w.waitForTemplateCondition(own, "True Ready")
}

// Two templates got addresses from overlapping pools before the operator knew that they may be on one network. Their machines
// keep the addresses, also across a restart, and no other machine gets one of these.
func TestAddressesFromBeforeAreNotAllocatedAgain(t *testing.T) {
	w := newClaimFixture(t)
	cluster := newProxmoxCluster(w.namespace+"-pve", "")
	env.Create(t, cluster)

	template := newBridgeTemplate(w.namespace, "small", cluster, "", "10.0.0.10-10.0.0.11")
	env.Create(t, template)
	w.reconcileOnce(w.templates, template)
	time.Sleep(time.Second) // ages are in whole seconds

	newer := newBridgeTemplate(w.namespace, "newer", cluster, "vmbr0", "10.0.0.10-10.0.0.19")
	env.Create(t, newer)

	before := newMachineClaim(w.namespace, "before", "newer")
	before.Finalizers = []string{"example.com/test"}
	env.Create(t, before)
	w.updateStatus(before, func(s *v1alpha1.MachineClaimStatus) {
		s.NetworkInfo = &v1alpha1.NetworkInfo{Addresses: []string{"10.0.0.10/16"}, AddressNetwork: cluster.Name + ":vmbr0"}
	})

	for range 2 {
		w.startReconcilers()
		w.reconcileOnce(w.templates, newer)
		w.reconcileOnce(w.templates, template)
		w.reconcileOnce(w.claims, before)
		w.requireAddresses(before, "Allocated", "10.0.0.10/16")
	}

	first, second := w.createClaim("first"), w.createClaim("second")
	w.reconcileOnce(w.claims, first)
	w.reconcileOnce(w.claims, second)
	w.requireAddresses(first, "Allocated", "10.0.0.11/16")
	w.requireAddresses(second, alloc.ReasonExhausted)

	// The machine with the address is gone, so that the address can be allocated.
	before.Finalizers = nil
	must.Do(t, env.Client.Update(t.Context(), before))
	must.Do(t, env.Client.Delete(t.Context(), before))
	w.reconcileOnce(w.claims, before)
	w.reconcileOnce(w.claims, second)
	w.requireAddresses(second, "Allocated", "10.0.0.10/16")
}

// The network of libvirt hosts was recorded without a bridge before. Its addresses stay in use on the bridge of the hosts.
func TestAddressesOfLibvirtHostsFromBefore(t *testing.T) {
	w := newClaimFixture(t)
	cluster := newLibvirtCluster(w.namespace+"-kvm", "br0", "br0")
	env.Create(t, cluster)

	template := newBridgeTemplate(w.namespace, "small", cluster, "", "10.0.0.10-10.0.0.11")
	env.Create(t, template)

	before := w.createClaim("before")
	w.updateStatus(before, func(s *v1alpha1.MachineClaimStatus) {
		s.NetworkInfo = &v1alpha1.NetworkInfo{Addresses: []string{"10.0.0.10/16"}, AddressNetwork: cluster.Name + ":"}
	})

	w.startReconcilers()
	w.reconcileOnce(w.templates, template)

	after := w.createClaim("after")
	w.reconcileOnce(w.claims, after)
	w.reconcileOnce(w.claims, before)
	w.requireAddresses(after, "Allocated", "10.0.0.11/16")
	w.requireAddresses(before, "Allocated", "10.0.0.10/16")

	if network := after.Status.NetworkInfo.AddressNetwork; network != cluster.Name+":br0" {
		t.Errorf("the address is on network %s", network)
	}
}

// Networks that may be one network share the use of addresses: none of them allocates an address or a gateway of another, and
// an owner that waits on one of them is woken when another one releases an address.
func TestAddressesOfRelatedNetworks(t *testing.T) {
	t.Parallel()

	const unknown, known = "lab:", "lab:vmbr0"

	b, w := pools.New(), &wakeRecorder{}
	acquire := func(network, pool, owner string, requested ...netip.Addr) string {
		got, err := b.Acquire(pools.Request{Network: network, Pool: pool, Owner: owner, Wake: w.newWake(owner), Requested: requested})
		if err != nil {
			return err.Error()
		}

		return fmt.Sprint(got)
	}

	// The machine has an address of the pool, but from another network.
	must.Do(t, b.Restore(known, alloc.Assignment{Owner: "old", Pool: "gone", Address: netip.MustParsePrefix("10.0.0.10/8")}))
	setPool(t, b, newPool(t, unknown, "p", "10.0.0.10-10.0.0.12"))

	gateway, err := alloc.NewPool("with gateway", alloc.Spec{
		Addresses: []string{"10.0.0.20-10.0.0.29"}, Gateways: []string{"10.0.0.12"}, PrefixLengthV4: 8,
	})
	must.Do(t, err)
	setPool(t, b, pools.Pool{Network: known, Addresses: gateway})
	setPool(t, b, newPool(t, "lab:vmbr1", "elsewhere", "10.0.0.20-10.0.0.29"))

	requireEqual(t, "the only free address", acquire(unknown, "p", "a"), "[10.0.0.11/8]")

	if text := acquire(unknown, "p", "c", netip.MustParseAddr("10.0.0.10")); !strings.Contains(text, "old has it") {
		t.Errorf("c got %s", text)
	}

	if text := acquire(unknown, "p", "b"); !strings.Contains(text, "in use") {
		t.Errorf("b got %s", text)
	}

	if detail, _ := b.Detail("p", 1); len(detail.Assignments) != 2 || detail.Assignments[0].Owner != "old" || detail.IPv4.Free != 0 {
		t.Errorf("the detail of the pool is %+v", detail)
	}

	b.Release("old")
	requireEqual(t, "woken", slices.Sorted(slices.Values(w.takeOwners())), []string{"b", "c"})
	requireEqual(t, "the address of the deleted machine", acquire(unknown, "p", "b"), "[10.0.0.10/8]")

	b.StopWaiting("c")
	acquire(unknown, "p", "d")
	b.RemovePool("with gateway")
	requireEqual(t, "woken when the gateway is gone", w.takeOwners(), []string{"d"})
	requireEqual(t, "the former gateway", acquire(unknown, "p", "d"), "[10.0.0.12/8]")

	// An overlap is found on each network that may be the same one, and only there.
	var overlap *alloc.OverlapError
	if err := b.SetPool(newPool(t, known, "late", "10.0.0.12-10.0.0.13"), w.newWake("late")); !errors.As(err, &overlap) ||
		overlap.Other != "p" || overlap.OtherNetwork != unknown {
		t.Fatalf("want an overlap with p, got %v", err)
	}

	b.RemovePool("p")
	requireEqual(t, "the refused pool's owner is woken", w.takeOwners(), []string{"late"})
	setPool(t, b, newPool(t, known, "late", "10.0.0.12-10.0.0.13"))
	requireEqual(t, "an address that no machine has", acquire(known, "late", "e"), "[10.0.0.13/8]")
}
