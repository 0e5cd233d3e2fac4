// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"encoding/json"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// newSpec returns the HostedCluster and its spec for a bridge whose spec is changed.
func newSpec(change func(*v1alpha1.DPFHCPBridgeSpec)) (*unstructured.Unstructured, fields) {
	b := bridge()
	change(&b.Spec)

	cluster := hypershift.NewHostedCluster(b, "10.20.0.1")
	spec, _ := cluster.Object["spec"].(fields)

	return cluster, spec
}

func TestNetworks(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		of   v1alpha1.Networking
		want fields
	}{
		"none are HyperShift's": {v1alpha1.Networking{}, fields{
			"networkType": "Other", "allocateNodeCIDRs": "Enabled",
			"clusterNetwork": list{fields{"cidr": "10.132.0.0/14"}}, "serviceNetwork": list{fields{"cidr": "172.31.0.0/16"}},
		}},
		"all of two families": {v1alpha1.Networking{
			ClusterNetwork: []v1alpha1.ClusterNetwork{{CIDR: "10.4.0.0/16", HostPrefix: 24}, {CIDR: "fd01::/48", HostPrefix: 64}},
			ServiceNetwork: []v1alpha1.Network{{CIDR: "10.5.0.0/16"}, {CIDR: "fd02::/112"}},
			MachineNetwork: []v1alpha1.Network{{CIDR: "10.6.0.0/16"}, {CIDR: "fd03::/64"}},
		}, fields{
			"networkType": "Other", "allocateNodeCIDRs": "Enabled",
			"clusterNetwork": list{
				fields{"cidr": "10.4.0.0/16", "hostPrefix": int64(24)}, fields{"cidr": "fd01::/48", "hostPrefix": int64(64)},
			},
			"serviceNetwork": list{fields{"cidr": "10.5.0.0/16"}, fields{"cidr": "fd02::/112"}},
			"machineNetwork": list{fields{"cidr": "10.6.0.0/16"}, fields{"cidr": "fd03::/64"}},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, spec := newSpec(func(s *v1alpha1.DPFHCPBridgeSpec) { s.Networking = tc.of })
			if diff := cmp.Diff(tc.want, spec["networking"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPlacement checks that the placement of a control plane is exactly the bridge's: other entries are
// removed, and the patch leads to the desired state.
func TestPlacement(t *testing.T) {
	t.Parallel()

	seconds := int64(0)
	all := &v1alpha1.ControlPlane{
		NodeSelector: map[string]v1alpha1.LabelValue{"example.com/control-plane": "", "zone": "a"},
		Labels:       map[string]v1alpha1.LabelValue{"team": "dpu"},
		Tolerations: []v1alpha1.Toleration{
			{Key: "example.com/control-plane", Operator: "Exists", Effect: "NoSchedule"},
			{Key: "slow", Value: "yes", Effect: "NoExecute", TolerationSeconds: &seconds},
		},
	}
	less := &v1alpha1.ControlPlane{NodeSelector: map[string]v1alpha1.LabelValue{"zone": "a"}, Tolerations: all.Tolerations[:1]}
	other := &v1alpha1.ControlPlane{NodeSelector: map[string]v1alpha1.LabelValue{"zone": "b"}, Labels: map[string]v1alpha1.LabelValue{"cost": "1"}}
	empty := &v1alpha1.ControlPlane{NodeSelector: map[string]v1alpha1.LabelValue{}, Tolerations: []v1alpha1.Toleration{}}

	_, spec := newSpec(func(s *v1alpha1.DPFHCPBridgeSpec) {
		s.ControlPlane = all.DeepCopy()
		s.ControlPlane.DisabledCapabilities = []string{"Ingress", "Console"}
	})
	got := fields{}

	for _, key := range []string{"nodeSelector", "labels", "tolerations", "capabilities"} {
		got[key] = spec[key]
	}

	want := fields{
		"nodeSelector": fields{"example.com/control-plane": "", "zone": "a"},
		"labels":       fields{"team": "dpu"},
		"tolerations": list{
			fields{"key": "example.com/control-plane", "operator": "Exists", "effect": "NoSchedule"},
			fields{"key": "slow", "value": "yes", "effect": "NoExecute", "tolerationSeconds": int64(0)},
		},
		"capabilities": fields{"disabled": list{"Console", "Ingress"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	cases := map[string]struct {
		have, want *v1alpha1.ControlPlane
		same       bool
	}{
		"the same":            {all, all, true},
		"empty is none":       {nil, empty, true},
		"all are added":       {nil, all, false},
		"all are removed":     {all, nil, false},
		"some are removed":    {all, less, false},
		"others take a place": {all, other, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			have, _ := newSpec(func(s *v1alpha1.DPFHCPBridgeSpec) { s.ControlPlane = tc.have })
			want, _ := newSpec(func(s *v1alpha1.DPFHCPBridgeSpec) { s.ControlPlane = tc.want })

			if got := hypershift.HasDesiredState(have, want); got != tc.same {
				t.Errorf("covered: %v", got)
			}

			patched := patch(t, have, hypershift.MergePatch(have, want))
			if !hypershift.HasDesiredState(patched, want) {
				t.Errorf("the patch %v does not lead to the desired state: %v", hypershift.MergePatch(have, want), patched.Object["spec"])
			}
		})
	}
}

func patch(t *testing.T, object *unstructured.Unstructured, difference fields) *unstructured.Unstructured {
	t.Helper()

	before, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}

	change, err := json.Marshal(difference)
	if err != nil {
		t.Fatal(err)
	}

	after, err := jsonpatch.MergePatch(before, change)
	if err != nil {
		t.Fatal(err)
	}

	patched := &unstructured.Unstructured{}
	if err := patched.UnmarshalJSON(after); err != nil {
		t.Fatal(err)
	}

	return patched
}
