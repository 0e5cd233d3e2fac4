// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func TestBuildDevices(t *testing.T) {
	t.Parallel()

	gpus, others := buildDevices(hypervisor.Shape{Devices: []hypervisor.Device{
		{Name: "nvidia.com/GA102GL_A10", Count: 2, GPU: true}, {Name: "intel.com/qat", Count: 1},
	}})

	wantGPUs := []virtv1.GPU{{Name: "gpu0", DeviceName: "nvidia.com/GA102GL_A10"}, {Name: "gpu1", DeviceName: "nvidia.com/GA102GL_A10"}}
	wantOthers := []virtv1.HostDevice{{Name: "device0", DeviceName: "intel.com/qat"}}

	if diff := cmp.Diff(wantGPUs, gpus) + cmp.Diff(wantOthers, others); diff != "" {
		t.Error(diff)
	}
}
