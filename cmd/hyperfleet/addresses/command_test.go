// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(hfv1.AddToScheme, infrav1.AddToScheme))
}

// run runs the command as main does, and gives its output, its error and its exit code.
func run(t *testing.T, args ...string) (string, string, int) {
	t.Helper()

	var out bytes.Buffer

	cmd := New()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--kubeconfig", env.Kubeconfig(t, env.Config)))

	if err := cmd.ExecuteContext(t.Context()); err != nil {
		return out.String(), err.Error(), cli.ExitCode(err)
	}

	return out.String(), "", 0
}

// put makes an object with a status.
func put[T client.Object](t *testing.T, object T, status func(T)) {
	t.Helper()
	env.Create(t, object)
	status(object)

	if err := env.Client.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// ago is a condition that says since so long whether there are addresses.
func ago(kind string, has bool, since time.Duration) []metav1.Condition {
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: "Done", LastTransitionTime: metav1.NewTime(time.Now().Add(-since)),
	}
	if !has {
		c.Status, c.Reason = metav1.ConditionFalse, alloc.ReasonExhausted
	}

	return []metav1.Condition{c}
}

func nodePool(t *testing.T, namespace, name string, addresses ...infrav1.AddressRange) {
	t.Helper()
	env.Create(t, &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: infrav1.KubevirtNodePoolSpec{
			AttachDefaultNetwork: new(false), AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "vlan20"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{Addresses: addresses, PrefixLengthV4: 24},
			RootVolume:             infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/a/b:1"}},
		},
	})
}

func machine(t *testing.T, namespace, pool, name string, since time.Duration, addresses ...string) {
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
	put(t, m, func(m *infrav1.KubevirtMachine) {
		m.Status.Conditions = ago(infrav1.ConditionAddressesAllocated, len(addresses) > 0, since)
		m.Status.Phase = infrav1.KubevirtMachinePending

		if len(addresses) > 0 {
			m.Status.Phase, m.Status.BootstrapNetwork = infrav1.KubevirtMachineRunning, namespace+"/vlan20"
			m.Status.AllocatedBootstrapAddresses = map[string][]string{"eno101": addresses}
		}
	})
}

// template makes a template with a pool of two addresses, on a cluster's network.
func template(t *testing.T, namespace, name, cluster string) {
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

// Who has which address of a node pool, since when, what is free, and who waits.
func TestNodePool(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	nodePool(t, namespace, "workers", "10.0.0.10-10.0.0.13")
	machine(t, namespace, "workers", "w-a", 3*time.Hour, "10.0.0.10/24")
	machine(t, namespace, "workers", "w-b", 10*time.Hour, "10.0.0.12/24")
	machine(t, namespace, "workers", "w-old", 48*time.Hour, "10.0.0.99/24") // from before the pool shrank
	machine(t, namespace, "workers", "w-late", 20*time.Hour)

	out, failed, code := run(t, "workers", "-n", namespace)
	if code != 0 {
		t.Fatal(failed)
	}

	out = strings.ReplaceAll(out, namespace, "NS")
	want := `KubevirtNodePool NS/workers
  Network    NS/vlan20
  Addresses  4
  Free       2
             10.0.0.11, 10.0.0.13
ADDRESS MACHINE PHASE SINCE NOTE
10.0.0.10/24 KubevirtMachine NS/w-a Running 3h
10.0.0.12/24 KubevirtMachine NS/w-b Running 10h
10.0.0.99/24 KubevirtMachine NS/w-old Running 2d the pool does not give it any more
- KubevirtMachine NS/w-late - 20h waits for an address
`

	if diff := cmp.Diff(columns(want), columns(out)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// columns are the words of each line.
func columns(text string) [][]string {
	var out [][]string
	for line := range strings.Lines(text) {
		out = append(out, strings.Fields(line))
	}

	return out
}

// Templates that share a pool are one pool; programs get the same as people.
func TestSharedPool(t *testing.T) {
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
		template(t, namespace, name, cluster.Name)
	}

	put(t, &hfv1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux-x7k2p"},
		Spec: hfv1.MachineClaimSpec{
			TemplateRef:    hfv1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: hfv1.Workload{Type: hfv1.WorkloadGitHubActions, Config: &hfv1.WorkloadConfig{GitHub: &hfv1.GitHubActionsConfig{}}},
		},
	}, func(c *hfv1.MachineClaim) {
		c.Status.Phase = hfv1.MachineClaimReady
		c.Status.Conditions = ago(hfv1.ConditionAddressAllocated, true, time.Hour)
		c.Status.NetworkInfo = &hfv1.NetworkInfo{Addresses: []string{"10.9.0.10/24"}, AddressNetwork: namespace + "/machines"}
	})

	for _, name := range []string{"linux", "hypervisormachinetemplate/linux-large"} {
		out, failed, code := run(t, name, "-n", namespace, "--output", "json")
		if code != 0 {
			t.Fatal(failed)
		}

		var got struct{ Pools []Pool }
		if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Pools) != 1 {
			t.Fatalf("%v: %s", err, out)
		}

		pool := got.Pools[0]
		if len(pool.Addresses) == 1 && pool.Addresses[0].Since != nil {
			if held := time.Since(*pool.Addresses[0].Since).Round(time.Minute); held != time.Hour {
				t.Errorf("has had it for %s", held)
			}

			pool.Addresses[0].Since = nil
		}

		want := Pool{
			Of:      []Object{{kindTemplate, namespace, "linux"}, {kindTemplate, namespace, "linux-large"}},
			Network: namespace + "/machines", IPv4: Usage{Size: 2, Free: 1}, Machines: 1,
			Addresses: []Address{{Address: "10.9.0.10/24", Machine: Object{kindClaim, namespace, "linux-x7k2p"}, Phase: "Ready"}},
			Free:      []string{"10.9.0.11"}, Waiting: []Waiting{},
		}
		if diff := cmp.Diff(want, pool); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Without a pool, all are listed: those of the namespace, and those of all. One that gives
// nothing says why.
func TestList(t *testing.T) {
	t.Parallel()

	namespace, other := env.Namespace(t), env.Namespace(t)
	nodePool(t, namespace, "workers", "10.0.0.10-10.0.0.13")
	nodePool(t, other, "more", "10.0.0.10-10.0.0.11", "fd00::10-fd00::1f")
	machine(t, namespace, "workers", "w-a", time.Hour, "10.0.0.10/24")

	out, failed, code := run(t, "-n", namespace)
	if code != 0 {
		t.Fatal(failed)
	}

	want := "POOL NETWORK ADDRESSES IN USE FREE WAITING PROBLEM\nKubevirtNodePool NS/workers NS/vlan20 4 1 3 0\n"
	if diff := cmp.Diff(columns(want), columns(strings.ReplaceAll(out, namespace, "NS"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	out, _, _ = run(t, "-A")
	for _, name := range []string{namespace + "/workers", other + "/more"} {
		if !strings.Contains(out, name) {
			t.Errorf("%s is missing in\n%s", name, out)
		}
	}

	if !strings.Contains(out, "2 + 16") {
		t.Errorf("two families are not told apart in\n%s", out)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	for name, tc := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no such pool":   {[]string{"none", "-n", namespace}, `"none" with static addresses in namespace ` + namespace, cli.ExitFailed},
		"two pools":      {[]string{"a", "b"}, "give one pool", cli.ExitUsage},
		"another output": {[]string{"--output", "xml"}, "use table or json", cli.ExitUsage},
		"both scopes":    {[]string{"-A", "-n", namespace}, "exclude each other", cli.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, failed, code := run(t, tc.args...); code != tc.code || !strings.Contains(failed, tc.want) {
				t.Errorf("code %d, %s", code, failed)
			}
		})
	}
}
