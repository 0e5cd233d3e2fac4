// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/kubevirttest"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

// world is one namespace with its KubeVirt.
type world struct {
	*testing.T
	*simkubevirt.Cluster

	namespace string
}

func newWorld(t *testing.T, options simkubevirt.Options) *world {
	t.Helper()

	w := &world{T: t, namespace: env.Namespace(t)}
	options.Namespaces, options.Judge = []string{w.namespace}, upstream.VirtAPI(t)
	w.Cluster = kubevirttest.New(t, env.Config, options)

	return w
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

func (w *world) delete(obj client.Object) {
	w.Helper()

	if err := env.Client.Delete(w.Context(), obj); err != nil {
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

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()

	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("never came true: %s; problems %v", what, w.Problems())
		}
	}
}

func (w *world) status(name string, want virtv1.VirtualMachinePrintableStatus) {
	w.Helper()

	var got virtv1.VirtualMachinePrintableStatus

	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if vm := w.vm(name); vm != nil {
			got = vm.Status.PrintableStatus
		}

		if got == want {
			return
		}

		if time.Now().After(deadline) {
			w.Fatalf("machine %s is %q, want %q; problems %v", name, got, want, w.Problems())
		}
	}
}

func (w *world) strategy(name string, strategy virtv1.VirtualMachineRunStrategy) {
	w.Helper()

	vm := &virtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"runStrategy":%q}}`, strategy))

	if err := env.Client.Patch(w.Context(), vm, patch); err != nil {
		w.Fatal(err)
	}
}

func (w *world) secret(name string, data map[string]string) {
	w.Helper()
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, StringData: data})
}
