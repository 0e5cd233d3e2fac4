// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	virtv1 "kubevirt.io/api/core/v1"

	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

// KubeVirt's webhooks reject machines that the schema accepts.
func TestValidate(t *testing.T) {
	t.Parallel()

	order, yes := uint(1), true
	judge := upstream.StartVirtAPI(t)

	cases := []struct {
		name     string
		change   func(*virtv1.VirtualMachine, *virtv1.VirtualMachineInstanceSpec)
		wantText string
	}{
		{"a machine", func(*virtv1.VirtualMachine, *virtv1.VirtualMachineInstanceSpec) {}, ""},
		{"no template", func(vm *virtv1.VirtualMachine, _ *virtv1.VirtualMachineInstanceSpec) {
			vm.Spec.Template = nil
		}, "template"}, // in KubeVirt itself, the schema rejects this machine before the webhook
		{"both ways to run", func(vm *virtv1.VirtualMachine, _ *virtv1.VirtualMachineInstanceSpec) {
			vm.Spec.Running = &yes
		}, "mutually exclusive"},
		{"no way to run", func(vm *virtv1.VirtualMachine, _ *virtv1.VirtualMachineInstanceSpec) {
			vm.Spec.RunStrategy = nil
		}, "RunStrategy must be specified"},
		{"no memory, which an instance must have", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Domain.Memory = nil
		}, ""},
		{"little memory", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1k")}
		}, "greater than or equal to 1M"},
		{"a host name with dots", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Hostname = "a.b"
		}, "DNS_LABEL"},
		{"a disk without a volume", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Volumes = nil
		}, "disks[0].Name 'root' not found"},
		{"a boot order twice", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks[0].BootOrder = &order
			s.Volumes = append(s.Volumes, virtv1.Volume{Name: "b", VolumeSource: s.Volumes[0].VolumeSource})
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, virtv1.Disk{Name: "b", BootOrder: &order})
		}, "already set for a different device"},
		{"a volume of no kind", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Volumes[0].VolumeSource = virtv1.VolumeSource{}
		}, "exactly one source type"},
		{"a volume twice", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Volumes = append(s.Volumes, s.Volumes[0])
		}, "must not have the same Name"},
		{"cloud-init without data", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Volumes[0].VolumeSource = virtv1.VolumeSource{CloudInitNoCloud: &virtv1.CloudInitNoCloudSource{}}
		}, "at least one userdatasource"},
		{"cloud-init with much data", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Volumes[0].VolumeSource = virtv1.VolumeSource{CloudInitNoCloud: &virtv1.CloudInitNoCloudSource{
				UserData: strings.Repeat("#", 2049),
			}}
		}, "exceeds 2048 byte limit"},
		{"an interface without a network", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces = []virtv1.Interface{{Name: "a"}}
		}, "interfaces[0].name 'a' not found"},
		{"a network without an interface", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Networks = []virtv1.Network{*virtv1.DefaultPodNetwork()}
		}, "networks[0].name 'default' not found"},
		{"a network twice", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Networks = []virtv1.Network{*virtv1.DefaultPodNetwork(), *virtv1.DefaultPodNetwork()}
			s.Domain.Devices.Interfaces = []virtv1.Interface{*virtv1.DefaultMasqueradeNetworkInterface()}
		}, "already exists"},
		{"masquerade off the pod network", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Networks = []virtv1.Network{{Name: "default", NetworkSource: virtv1.NetworkSource{
				Multus: &virtv1.MultusNetwork{NetworkName: "a"},
			}}}
			s.Domain.Devices.Interfaces = []virtv1.Interface{*virtv1.DefaultMasqueradeNetworkInterface()}
		}, "only implemented with pod network"},
		{"a MAC address", func(_ *virtv1.VirtualMachine, s *virtv1.VirtualMachineInstanceSpec) {
			s.Networks = []virtv1.Network{*virtv1.DefaultPodNetwork()}
			s.Domain.Devices.Interfaces = []virtv1.Interface{*virtv1.DefaultMasqueradeNetworkInterface()}
			s.Domain.Devices.Interfaces[0].MacAddress = "zz"
		}, "malformed MAC address"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			w := &simFixture{T: t, site: &site{}}
			vm := w.newVM("a", virtv1.RunStrategyHalted)
			c.change(vm, &vm.Spec.Template.Spec)

			got := strings.Join(simkubevirt.Validate(vm), "; ")
			if !strings.Contains(got, c.wantText) || (c.wantText == "") != (got == "") {
				t.Errorf("want %q, got %q", c.wantText, got)
			}

			if judge == nil {
				return
			}

			causes, err := judge(t.Context(), vm)
			if joined := strings.Join(causes, "; "); err != nil || !strings.Contains(joined, c.wantText) || (c.wantText == "") != (joined == "") {
				t.Errorf("want %q, KubeVirt itself reports %q, %v", c.wantText, joined, err)
			}
		})
	}
}

// KubeVirt accepts a VirtualMachine without memory but rejects its instance, so the machine does not start.
func TestMachineWithoutMemoryDoesNotStart(t *testing.T) {
	t.Parallel()

	w := &simFixture{T: t, site: &site{t: t, namespace: env.Namespace(t)}}

	sim, err := simkubevirt.Start(env.Config, simkubevirt.Options{Namespaces: []string{w.namespace}, Webhook: upstream.StartVirtAPI(t)})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})

	w.sim = sim
	vm := w.newVM("a", virtv1.RunStrategyAlways)
	vm.Spec.Template.Spec.Domain.Memory = nil
	w.create(vm)
	w.eventually("KubeVirt rejects the instance", func() bool {
		all := sim.Violations()

		return len(all) == 1 && strings.Contains(all[0].Message, "no memory requested")
	})

	if w.getVMI("a") != nil || len(sim.Problems()) > 0 {
		t.Errorf("got %v, problems %v", w.getVMI("a"), sim.Problems())
	}
}

// The API server validates objects by KubeVirt's schemas.
func TestSchemasRefuse(t *testing.T) { //nolint:tparallel // its subtests change one simulator in turn
	t.Parallel()

	namespace := env.Namespace(t)

	cases := []struct {
		name  string
		iface map[string]any
		valid bool
	}{
		{"an interface", map[string]any{"name": "default", "masquerade": map[string]any{}}, true},
		{"an interface with a place on the bus", map[string]any{"name": "default", "acpiIndex": int64(101)}, true},
		{"an interface without a name", map[string]any{"masquerade": map[string]any{}}, false},
		{"an interface whose name is a number", map[string]any{"name": int64(1)}, false},
	}
	for n, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			vm := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
				"metadata": map[string]any{"name": fmt.Sprintf("vm-%d", n), "namespace": namespace},
				"spec": map[string]any{
					"runStrategy": "Halted",
					"template": map[string]any{"spec": map[string]any{"domain": map[string]any{
						"devices": map[string]any{"interfaces": []any{c.iface}},
					}}},
				},
			}}

			err := env.Client.Create(t.Context(), vm)
			if (err == nil) != c.valid || (err != nil && !apierrors.IsInvalid(err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}
