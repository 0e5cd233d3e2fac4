// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubevirt-webhook validates VirtualMachines in the same way as KubeVirt's virt-api. It uses KubeVirt's own code
// with the configuration of a new installation. Tests use it. It is not part of a release.
//
//	kubevirt-webhook ADDRESS
//
// The command receives admission reviews over plain HTTP, so that it must listen on a loopback address. It exits when its
// parent process exits.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	virtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"

	"kubevirt.io/kubevirt/pkg/instancetype/conflict"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/validating-webhook/admitters"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
)

const (
	namespace         = "kubevirt"
	maxReviewSize     = 4 << 20
	readHeaderTimeout = 10 * time.Second
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kubevirt-webhook ADDRESS")
		os.Exit(2)
	}

	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kubevirt-webhook:", err)
		os.Exit(1)
	}
}

func run(address string) error {
	config, err := newClusterConfig()
	if err != nil {
		return fmt.Errorf("create KubeVirt's cluster configuration: %w", err)
	}

	admitter := &admitters.VMsAdmitter{InstancetypeAdmitter: noInstancetypes{}, ClusterConfig: config}
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: readHeaderTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handleReview(w, r, admitter)
		}),
	}

	go func(parent int) {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}

		os.Exit(0)
	}(os.Getppid())

	return server.ListenAndServe()
}

func handleReview(w http.ResponseWriter, r *http.Request, admitter *admitters.VMsAdmitter) {
	var review admissionv1.AdmissionReview

	if err := json.NewDecoder(io.LimitReader(r.Body, maxReviewSize)).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("invalid admission review: %v", err), http.StatusBadRequest)

		return
	}

	review.Response = admitter.Admit(r.Context(), &review)
	review.Response.UID = review.Request.UID
	review.Request = nil

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// newClusterConfig returns the configuration of an unmodified KubeVirt installation on a cluster with CDI.
func newClusterConfig() (*virtconfig.ClusterConfig, error) {
	crds, installations := informer(&apiextensionsv1.CustomResourceDefinition{}), informer(&virtv1.KubeVirt{})

	for _, plural := range []string{"datavolumes", "datasources"} {
		if err := crds.GetStore().Add(&apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".cdi.kubevirt.io"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "cdi.kubevirt.io", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural},
			},
		}); err != nil {
			return nil, err
		}
	}

	if err := installations.GetStore().Add(&virtv1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt", ResourceVersion: "1"},
		Status:     virtv1.KubeVirtStatus{Phase: virtv1.KubeVirtPhaseDeployed},
	}); err != nil {
		return nil, err
	}

	return virtconfig.NewClusterConfigWithCPUArch(crds, installations, namespace, "amd64")
}

// informer returns an informer that watches nothing. Objects can be added to its store only.
func informer(object runtime.Object) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{}, object, 0, cache.Indexers{})
}

// noInstancetypes is an admitter for machines without an instancetype.
type noInstancetypes struct{}

func (noInstancetypes) ApplyToVM(*virtv1.VirtualMachine) (
	*instancetypev1beta1.VirtualMachineInstancetypeSpec, *instancetypev1beta1.VirtualMachinePreferenceSpec, []metav1.StatusCause,
) {
	return nil, nil, nil
}

func (noInstancetypes) Check(
	*instancetypev1beta1.VirtualMachineInstancetypeSpec, *instancetypev1beta1.VirtualMachinePreferenceSpec,
	*virtv1.VirtualMachineInstanceSpec,
) (conflict.Conflicts, error) {
	return nil, nil
}
