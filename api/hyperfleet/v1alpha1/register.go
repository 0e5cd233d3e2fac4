// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "hyperfleet.io", Version: "v1alpha1"} //nolint:gochecknoglobals // it is never changed, but Go has no constant structs

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&HypervisorCluster{}, &HypervisorClusterList{},
		&HypervisorMachineTemplate{}, &HypervisorMachineTemplateList{},
		&RunnerPool{}, &RunnerPoolList{},
		&MachineClaim{}, &MachineClaimList{},
		&RunnerJob{}, &RunnerJobList{},
		&RunnerJobBatch{}, &RunnerJobBatchList{},
		&RunnerLog{}, &RunnerLogList{},
		&DNSRegistration{}, &DNSRegistrationList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)

	return nil
}
