// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// world is a site with its own machines.
type world struct {
	*testing.T
	*simkubevirt.Cluster
	*site
}

func newWorld(t *testing.T, options simkubevirt.Options) *world {
	t.Helper()

	s := newSiteWith(t, options)

	return &world{T: t, Cluster: s.sim, site: s}
}

func (w *world) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: name}
}

// machine is a VirtualMachine with a network.
func (w *world) machine(name string, strategy virtv1.VirtualMachineRunStrategy) *virtv1.VirtualMachine {
	memory := resource.MustParse("1Gi")

	return &virtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: virtv1.VirtualMachineSpec{
			RunStrategy: &strategy,
			Template: &virtv1.VirtualMachineInstanceTemplateSpec{
				Spec: virtv1.VirtualMachineInstanceSpec{
					Domain: virtv1.DomainSpec{
						Memory: &virtv1.Memory{Guest: &memory},
						Devices: virtv1.Devices{
							Disks: []virtv1.Disk{{Name: "root"}},
						},
					},
					Volumes: []virtv1.Volume{{Name: "root", VolumeSource: virtv1.VolumeSource{
						ContainerDisk: &virtv1.ContainerDiskSource{Image: "example.com/linux:1"},
					}}},
				},
			},
		},
	}
}

func (w *world) create(obj client.Object) {
	w.Helper()

	if err := env.Client.Create(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// vm reads a VirtualMachine; nil is none.
func (w *world) vm(name string) *virtv1.VirtualMachine {
	w.Helper()

	var vm virtv1.VirtualMachine

	return found(w, name, &vm)
}

func (w *world) vmi(name string) *virtv1.VirtualMachineInstance {
	w.Helper()

	var vmi virtv1.VirtualMachineInstance

	return found(w, name, &vmi)
}

func found[T client.Object](w *world, name string, into T) T {
	w.Helper()

	var none T

	err := env.Client.Get(w.Context(), w.key(name), into)

	switch {
	case apierrors.IsNotFound(err):
		return none
	case err != nil:
		w.Fatal(err)
	}

	return into
}

const patience = time.Minute

func (w *world) status(name string, want virtv1.VirtualMachinePrintableStatus) {
	w.Helper()
	w.eventually(fmt.Sprintf("machine %s is %s", name, want), func() bool {
		vm := w.vm(name)

		return vm != nil && vm.Status.PrintableStatus == want
	})
}

func (w *world) strategy(name string, strategy virtv1.VirtualMachineRunStrategy) {
	w.Helper()

	vm := &virtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"runStrategy":%q}}`, strategy))

	if err := env.Client.Patch(w.Context(), vm, patch); err != nil {
		w.Fatal(err)
	}
}
