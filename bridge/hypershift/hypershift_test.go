// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

type (
	fields = map[string]any
	list   = []any
)

const image = "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64"

func bridge() *v1alpha1.DPFHCPBridge {
	return &v1alpha1.DPFHCPBridge{
		ObjectMeta: metav1.ObjectMeta{Namespace: "hosted", Name: "prod", UID: "uid"},
		Spec: v1alpha1.DPFHCPBridgeSpec{
			OCPReleaseImage: image, BaseDomain: "example.com", EtcdStorageClass: "ceph", ClusterType: "dpf-dev",
			ControlPlaneAvailabilityPolicy: v1alpha1.HighlyAvailable, InfrastructureAvailabilityPolicy: v1alpha1.SingleReplica,
			MetalLBVirtualIP: "10.0.0.1", PullSecretRef: v1alpha1.LocalObjectReference{Name: "pull"},
		},
	}
}

// TestOnlyDifferencesAreSent checks that fields that HyperShift and others add are kept, and that only
// changed fields are sent.
func TestOnlyDifferencesAreSent(t *testing.T) {
	t.Parallel()

	want := hypershift.NewHostedCluster(bridge(), "10.20.0.1")

	have := want.DeepCopy()
	have.SetLabels(map[string]string{"other": "label"})
	have.Object["status"] = fields{"a": "b"}
	set(t, have, "b", "spec", "infraID")
	set(t, have, list{fields{"cidr": "10.132.0.0/14", "hostPrefix": int64(23)}}, "spec", "networking", "clusterNetwork")

	if hypershift.HasDesiredState(have, want) {
		t.Error("missing labels were not detected")
	}

	have.SetLabels(want.GetLabels())

	if !hypershift.HasDesiredState(have, want) {
		t.Error("an added field was treated as a difference")
	}

	set(t, have, "quay.io/other:1", "spec", "release", "image")

	if hypershift.HasDesiredState(have, want) {
		t.Error("a changed release was not detected")
	}

	got, _ := hypershift.MergePatch(have, want)["spec"].(fields)
	if diff := cmp.Diff(fields{"release": fields{"image": image}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestChangesOfABridgeAreSent checks that a change of each field of a bridge that can change is sent to HyperShift.
func TestChangesOfABridgeAreSent(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*v1alpha1.DPFHCPBridgeSpec)
		want   fields
	}{
		"ocpReleaseImage": {
			func(s *v1alpha1.DPFHCPBridgeSpec) { s.OCPReleaseImage = "quay.io/other:1" }, fields{"release": fields{"image": "quay.io/other:1"}},
		},
		"pullSecretRef": {
			func(s *v1alpha1.DPFHCPBridgeSpec) { s.PullSecretRef.Name = "other" }, fields{"pullSecret": fields{"name": "other"}},
		},
		"infrastructureAvailabilityPolicy": {
			func(s *v1alpha1.DPFHCPBridgeSpec) { s.InfrastructureAvailabilityPolicy = v1alpha1.HighlyAvailable },
			fields{"infrastructureAvailabilityPolicy": "HighlyAvailable"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := bridge()
			existing := hypershift.NewHostedCluster(b, "10.20.0.1")
			tc.change(&b.Spec)
			desired := hypershift.NewHostedCluster(b, "10.20.0.1")

			if hypershift.HasDesiredState(existing, desired) {
				t.Error("the change was not detected")
			}

			if diff := cmp.Diff(tc.want, hypershift.MergePatch(existing, desired)["spec"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func set(t *testing.T, object *unstructured.Unstructured, value any, path ...string) {
	t.Helper()

	if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
		t.Fatal(err)
	}
}

// HyperShift gets what the bridge says, also if the two availability policies differ.
func TestHostedClusterOfABridge(t *testing.T) {
	t.Parallel()

	for _, policies := range [][2]v1alpha1.AvailabilityPolicy{
		{v1alpha1.HighlyAvailable, v1alpha1.HighlyAvailable}, {v1alpha1.HighlyAvailable, v1alpha1.SingleReplica},
		{v1alpha1.SingleReplica, v1alpha1.HighlyAvailable}, {v1alpha1.SingleReplica, v1alpha1.SingleReplica},
	} {
		b := bridge()
		b.Spec.ControlPlaneAvailabilityPolicy, b.Spec.InfrastructureAvailabilityPolicy = policies[0], policies[1]
		object := hypershift.NewHostedCluster(b, "10.20.0.1")

		for path, want := range map[string]string{
			"controllerAvailabilityPolicy": string(policies[0]), "infrastructureAvailabilityPolicy": string(policies[1]),
			"release.image": image, "dns.baseDomain": "example.com", "pullSecret.name": "pull",
			"sshKey.name": hypershift.SSHKeySecretName("prod"), "etcd.managed.storage.persistentVolume.storageClassName": "ceph",
		} {
			got, _, err := unstructured.NestedString(object.Object, append([]string{"spec"}, strings.Split(path, ".")...)...)
			if err != nil || got != want {
				t.Errorf("spec.%s is %q, want %q: %v", path, got, want, err)
			}
		}
	}
}

// The NodePool belongs to the HostedCluster of its bridge, whose name is not that of the DPUCluster, and creates no machines.
func TestNodePoolOfABridge(t *testing.T) {
	t.Parallel()

	b := bridge()
	b.Spec.DPUClusterRef = v1alpha1.ObjectReference{Namespace: "dpf", Name: "dpus"}
	cluster, pool := hypershift.NewHostedCluster(b, "10.20.0.1"), hypershift.NewNodePool(b, image)

	want := fields{
		"clusterName": cluster.GetName(), "replicas": int64(0), "platform": fields{"type": "None"}, "release": fields{"image": image},
		"management": fields{"upgradeType": "Replace", "autoRepair": false},
	}
	if diff := cmp.Diff(want, pool.Object["spec"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	if pool.GetNamespace() != cluster.GetNamespace() || !metav1.IsControlledBy(pool, b) || !metav1.IsControlledBy(cluster, b) {
		t.Errorf("owners %v and %v, namespace %s", cluster.GetOwnerReferences(), pool.GetOwnerReferences(), pool.GetNamespace())
	}
}

func TestHowServicesArePublished(t *testing.T) {
	t.Parallel()

	kinds := func(object *unstructured.Unstructured) map[string]string {
		out := map[string]string{}
		published, _, _ := unstructured.NestedSlice(object.Object, "spec", "services")

		for _, item := range published {
			service, _ := item.(fields)
			name, _, _ := unstructured.NestedString(service, "service")
			kind, _, _ := unstructured.NestedString(service, "servicePublishingStrategy", "type")
			out[name] = kind
		}

		return out
	}

	ports := hypershift.NewHostedCluster(bridge(), "10.20.0.1")
	want := map[string]string{"APIServer": "NodePort", "OAuthServer": "NodePort", "Konnectivity": "NodePort", "Ignition": "NodePort"}

	if diff := cmp.Diff(want, kinds(ports)); diff != "" || hypershift.NodeAddress(ports) != "10.20.0.1" {
		t.Errorf("at %s (-want +got):\n%s", hypershift.NodeAddress(ports), diff)
	}

	b := bridge()
	b.Spec.ExposeThroughLoadBalancer = true
	balanced := hypershift.NewHostedCluster(b, "")
	want = map[string]string{"APIServer": "LoadBalancer", "OAuthServer": "Route", "Konnectivity": "Route", "Ignition": "Route"}

	if diff := cmp.Diff(want, kinds(balanced)); diff != "" || hypershift.NodeAddress(balanced) != "" {
		t.Errorf("at %s (-want +got):\n%s", hypershift.NodeAddress(balanced), diff)
	}
}

func TestRolledOut(t *testing.T) {
	t.Parallel()

	entry := func(image, state string) fields { return fields{"image": image, "state": state} }
	cases := map[string]struct {
		status fields
		want   bool
	}{
		"no status":                            {fields{}, false},
		"control plane has it":                 {fields{"controlPlaneVersion": fields{"history": list{entry(image, "Completed")}}}, true},
		"control plane is on its way":          {fields{"controlPlaneVersion": fields{"history": list{entry(image, "Partial"), entry("old", "Completed")}}}, false},
		"control plane has the one before":     {fields{"controlPlaneVersion": fields{"history": list{entry("old", "Completed")}}}, false},
		"control plane counts":                 {fields{"controlPlaneVersion": fields{"history": list{entry(image, "Completed")}}, "version": fields{"history": list{entry(image, "Partial")}}}, true},
		"first installation, without workers":  {fields{"version": fields{"history": list{entry(image, "Partial")}}}, true},
		"first installation, of another":       {fields{"version": fields{"history": list{entry("old", "Completed")}}}, false},
		"upgrade on its way, by version":       {fields{"version": fields{"history": list{entry(image, "Partial"), entry("old", "Completed")}}}, false},
		"upgrade is done, by version":          {fields{"version": fields{"history": list{entry(image, "Completed"), entry("old", "Completed")}}}, true},
		"history of words":                     {fields{"version": fields{"history": list{"words"}}}, false},
		"history that is no list":              {fields{"version": fields{"history": "words"}}, false},
		"control plane's history has no entry": {fields{"controlPlaneVersion": fields{"history": list{}}}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cluster := hypershift.NewHostedCluster(bridge(), "10.20.0.1")
			cluster.Object["status"] = tc.status

			if got := hypershift.IsRolledOut(cluster); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDPUCluster(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		object fields
		want   hypershift.DPUCluster
		room   int64
	}{
		"nothing": {fields{}, hypershift.DPUCluster{MaxNodes: 1000}, 1000},
		"some": {
			fields{"spec": fields{"type": "static", "maxNodes": int64(10), "kubeconfig": "a"}, "status": fields{"phase": "Ready", "nodesCount": int64(4)}},
			hypershift.DPUCluster{Type: "static", Phase: "Ready", Kubeconfig: "a", MaxNodes: 10, Nodes: 4}, 6,
		},
		"more than there may be": {
			fields{"spec": fields{"maxNodes": int64(2)}, "status": fields{"nodesCount": int64(3)}},
			hypershift.DPUCluster{MaxNodes: 2, Nodes: 3}, 0,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := hypershift.DecodeDPUCluster(&unstructured.Unstructured{Object: tc.object})
			if diff := cmp.Diff(tc.want, got); diff != "" || got.FreeNodes() != tc.room {
				t.Errorf("room for %d (-want +got):\n%s", got.FreeNodes(), diff)
			}
		})
	}
}

func TestServicesOfPool(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		allocation fields
		want       bool
	}{
		"everybody":       {nil, true},
		"the namespace":   {fields{"namespaces": list{"a", "hosted-prod"}}, true},
		"others":          {fields{"namespaces": list{"a"}}, false},
		"those by labels": {fields{"namespaces": list{"a"}, "namespaceSelectors": list{fields{"matchLabels": fields{"a": "b"}}}}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			pool := hypershift.NewAddressPool(bridge(), "metallb-system")
			if !hypershift.CanServe(pool, "hosted-prod") || hypershift.CanServe(pool, "hosted-other") {
				t.Error("a bridge's own pool serves only its control plane")
			}

			pool.Object["spec"] = fields{"serviceAllocation": tc.allocation}

			if got := hypershift.CanServe(pool, "hosted-prod"); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestNodesTrouble(t *testing.T) {
	t.Parallel()

	condition := func(kind, status, reason string) fields {
		return fields{"type": kind, "status": status, "reason": reason, "message": "words"}
	}
	cases := map[string]struct {
		conditions list
		reason     string
	}{
		"no status":        {nil, ""},
		"no replicas":      {list{condition("AllMachinesReady", "False", "AsExpected"), condition("AllNodesHealthy", "False", "AsExpected")}, ""},
		"no machines yet":  {list{condition("AllMachinesReady", "False", "NotFound")}, "WaitingForNodes"},
		"unhealthy counts": {list{condition("AllMachinesReady", "False", "NotFound"), condition("AllNodesHealthy", "False", "A")}, "NodesUnhealthy"},
		"invalid":          {list{condition("ValidReleaseImage", "False", "A")}, "NodesUnhealthy"},
		"not updating":     {list{condition("UpdatingVersion", "False", "A")}, ""},
		"well":             {list{condition("AllNodesHealthy", "True", "AsExpected")}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			pool := hypershift.NewNodePool(bridge(), image)
			pool.Object["status"] = fields{"conditions": tc.conditions}

			if reason, message := hypershift.NodePoolProblem(pool); reason != tc.reason || (message == "") != (tc.reason == "") {
				t.Errorf("got %s: %s", reason, message)
			}
		})
	}
}
