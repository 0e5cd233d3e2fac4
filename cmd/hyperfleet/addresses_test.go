// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/addresses"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// addressCondition returns a condition about allocated addresses that has had its status for the given time.
func addressCondition(kind string, has bool, since time.Duration) []metav1.Condition {
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: "Done", LastTransitionTime: metav1.NewTime(time.Now().Add(-since)),
	}
	if !has {
		c.Status, c.Reason = metav1.ConditionFalse, alloc.ReasonExhausted
	}

	return []metav1.Condition{c}
}

func createPool(t *testing.T, namespace, name string, ranges ...infrav1.AddressRange) {
	t.Helper()
	env.Create(t, &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: infrav1.KubevirtNodePoolSpec{
			AttachDefaultNetwork: new(false), AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "vlan20"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{Addresses: ranges, PrefixLengthV4: 24},
			RootVolume:             infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/a/b:1"}},
		},
	})
}

func createMachine(t *testing.T, namespace, pool, name string, since time.Duration, has ...string) {
	t.Helper()

	data := "links: []"
	m := &infrav1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{infrav1.LabelNodePool: pool}},
		Spec: infrav1.KubevirtMachineSpec{
			VirtualMachineTemplate: runtime.RawExtension{Raw: []byte(
				`{"spec":{"template":{"spec":{"networks":[{"name":"net","multus":{"networkName":"` + namespace + `/vlan20"}}]}}}}`)},
			BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{
				Interface: "eno101", NetworkName: "net", Subnets: []infrav1.AddressRange{"10.0.0.0/24"}, NetworkData: &data,
			},
		},
	}
	createWithStatus(t, m, func(m *infrav1.KubevirtMachine) {
		m.Status.Conditions = addressCondition(infrav1.ConditionAddressesAllocated, len(has) > 0, since)
		m.Status.Phase = infrav1.KubevirtMachinePending

		if len(has) > 0 {
			m.Status.Phase, m.Status.BootstrapNetwork = infrav1.KubevirtMachineRunning, namespace+"/vlan20"
			m.Status.AllocatedBootstrapAddresses = map[string][]string{"eno101": has}
		}
	})
}

// createTemplate creates a template with a pool of two addresses on the network of a cluster.
func createTemplate(t *testing.T, namespace, name, cluster string) {
	t.Helper()
	env.Create(t, &hfv1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: hfv1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: hfv1.LocalObjectReference{Name: cluster},
			Template: hfv1.TemplateSource{KubeVirt: &hfv1.KubeVirtTemplate{
				Network: "machines", ContainerDisk: &hfv1.ContainerDisk{Image: "registry.example.com/runner:1"},
			}},
			Resources: hfv1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
			Network: &hfv1.MachineNetwork{Mode: hfv1.NetworkModeStatic, Static: &hfv1.StaticNetwork{
				Pool: &hfv1.AddressPool{Addresses: []hfv1.AddressRange{"10.9.0.10-10.9.0.11"}, PrefixLengthV4: 24},
			}},
		},
	})
}

// TestAddressesOfANodePool checks the details of a node pool: the machine that uses each address and since when, the
// free addresses, and the machines that wait for an address.
func TestAddressesOfANodePool(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	createPool(t, namespace, "workers", "10.0.0.10-10.0.0.13")
	createMachine(t, namespace, "workers", "w-a", 3*time.Hour, "10.0.0.10/24")
	createMachine(t, namespace, "workers", "w-b", 10*time.Hour, "10.0.0.12/24")
	createMachine(t, namespace, "workers", "w-old", 48*time.Hour, "10.0.0.99/24") // allocated before the pool was made smaller
	createMachine(t, namespace, "workers", "w-late", 20*time.Hour)

	got := execute(t, env.Config, "addresses", "workers", "-n", namespace)
	got.expectSuccess(t)

	want := `KubevirtNodePool NS/workers
  Network    NS/vlan20
  Addresses  4
  Free       2
             10.0.0.11, 10.0.0.13
ADDRESS MACHINE PHASE SINCE NOTE
10.0.0.10/24 KubevirtMachine NS/w-a Running 3h
10.0.0.12/24 KubevirtMachine NS/w-b Running 10h
10.0.0.99/24 KubevirtMachine NS/w-old Running 2d no longer part of the pool
- KubevirtMachine NS/w-late - 20h waits for an address
`

	if diff := cmp.Diff(columns(want), columns(strings.ReplaceAll(got.out, namespace, "NS"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// columns returns the words of each line.
func columns(text string) [][]string {
	var out [][]string
	for line := range strings.Lines(text) {
		out = append(out, strings.Fields(line))
	}

	return out
}

// TestAddressesOfASharedPool checks that templates that share a pool are shown as one pool, and the JSON output.
func TestAddressesOfASharedPool(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	cluster := &hfv1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: hfv1.HypervisorClusterSpec{
			Provider: hfv1.ProviderKubeVirt,
			KubeVirt: &hfv1.KubeVirtCluster{Namespace: namespace, Network: "machines"},
		},
	}
	env.Create(t, cluster)

	for _, name := range []string{"linux", "linux-large"} {
		createTemplate(t, namespace, name, cluster.Name)
	}

	createWithStatus(t, &hfv1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux-x7k2p"},
		Spec: hfv1.MachineClaimSpec{
			TemplateRef:    hfv1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: hfv1.Workload{Type: hfv1.WorkloadGitHubActions, Config: &hfv1.WorkloadConfig{GitHub: &hfv1.GitHubActionsConfig{}}},
		},
	}, func(c *hfv1.MachineClaim) {
		c.Status.Phase = hfv1.MachineClaimReady
		c.Status.Conditions = addressCondition(hfv1.ConditionAddressAllocated, true, time.Hour)
		c.Status.NetworkInfo = &hfv1.NetworkInfo{Addresses: []string{"10.9.0.10/24"}, AddressNetwork: namespace + "/machines"}
	})

	const named = "hypervisormachinetemplate.hyperfleet.io/"

	if got := execute(t, env.Config, "addresses", "linux", "-n", namespace, "-o", "name"); got.err != nil || got.out != named+"linux\n"+named+"linux-large\n" {
		t.Errorf("the names are %+v", got)
	}

	for _, name := range []string{"linux", "hypervisormachinetemplate/linux-large", named + "linux"} {
		shown := execute(t, env.Config, "addresses", name, "-n", namespace, "--output", "json")

		var got struct{ Pools []addresses.Pool }
		if err := json.Unmarshal([]byte(shown.out), &got); err != nil || len(got.Pools) != 1 {
			t.Fatalf("%v: %+v", err, shown)
		}

		pool := got.Pools[0]
		if len(pool.Addresses) == 1 && pool.Addresses[0].Since != nil {
			if held := time.Since(*pool.Addresses[0].Since).Round(time.Minute); held != time.Hour {
				t.Errorf("has had it for %s", held)
			}

			pool.Addresses[0].Since = nil
		}

		want := addresses.Pool{
			Owners: []addresses.Object{
				{Kind: "HypervisorMachineTemplate", Namespace: namespace, Name: "linux"},
				{Kind: "HypervisorMachineTemplate", Namespace: namespace, Name: "linux-large"},
			},
			Network: namespace + "/machines", IPv4: addresses.Usage{Size: 2, Free: 1}, Machines: 1,
			Addresses: []addresses.Address{{
				Address: "10.9.0.10/24", Phase: "Ready",
				Machine: addresses.Object{Kind: "MachineClaim", Namespace: namespace, Name: "linux-x7k2p"},
			}},
			Free: []string{"10.9.0.11"}, WaitingMachines: []addresses.WaitingMachine{},
		}
		if diff := cmp.Diff(want, pool); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAddressesList checks the list of the pools of one namespace and of all namespaces.
func TestAddressesList(t *testing.T) {
	t.Parallel()

	namespace, other := env.Namespace(t), env.Namespace(t)
	createPool(t, namespace, "workers", "10.0.0.10-10.0.0.13")
	createPool(t, other, "more", "10.0.0.10-10.0.0.11", "fd00::10-fd00::1f")
	createMachine(t, namespace, "workers", "w-a", time.Hour, "10.0.0.10/24")

	got := execute(t, env.Config, "addresses", "-n", namespace)
	want := "POOL NETWORK ADDRESSES IN USE FREE WAITING PROBLEM\nKubevirtNodePool NS/workers NS/vlan20 4 1 3 0\n"

	if diff := cmp.Diff(columns(want), columns(strings.ReplaceAll(got.out, namespace, "NS"))); diff != "" {
		t.Errorf("%v (-want +got):\n%s", got.err, diff)
	}

	got = execute(t, env.Config, "addresses", "-n", namespace, "-o", "wide")
	want = "POOL NETWORK ADDRESSES IN USE FREE WAITING MACHINES FREE RANGES PROBLEM\n" +
		"KubevirtNodePool NS/workers NS/vlan20 4 1 3 0 3 10.0.0.11-10.0.0.13\n"

	if diff := cmp.Diff(columns(want), columns(strings.ReplaceAll(got.out, namespace, "NS"))); diff != "" {
		t.Errorf("%v (-want +got):\n%s", got.err, diff)
	}

	// Addresses of the two families are counted separately.
	execute(t, env.Config, "addresses", "-A").expectSuccess(t, namespace+"/workers", other+"/more", "2 + 16")
}

func TestAddressesFail(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	for name, tc := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no such pool": {[]string{"none", "-n", namespace}, `"none" with static addresses in namespace ` + namespace, cli.ExitFailed},
		"two pools":    {[]string{"a", "b"}, "give one pool", cli.ExitUsage},
		"both scopes":  {[]string{"-A", "-n", namespace}, "mutually exclusive", cli.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			execute(t, env.Config, append([]string{"addresses"}, tc.args...)...).expectFailure(t, tc.code, tc.want)
		})
	}
}
