// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// etcdSize is the size of etcd's volumes.
const etcdSize = "8Gi"

// Condition types, reasons and states of a HostedCluster
// (https://hypershift-docs.netlify.app/reference/api/, HostedClusterStatus).
const (
	Available   = "Available"
	Progressing = "Progressing"
	Degraded    = "Degraded"
	// ValidConfiguration, SupportedHostedCluster and ValidReleaseImage: if one of them is False, HyperShift
	// does not create or change anything of the cluster.
	ValidConfiguration     = "ValidConfiguration"
	SupportedHostedCluster = "SupportedHostedCluster"
	ValidReleaseImage      = "ValidReleaseImage"
	// ReconciliationSucceeded has the error of HyperShift's last reconcile as its message.
	ReconciliationSucceeded = "ReconciliationSucceeded"
	reasonSecretNotFound    = "SecretNotFound" // #nosec G101 -- a reason, not a credential
	reasonBlocked           = "Blocked"
	stateCompleted          = "Completed"
)

// APIServerService is the name of HyperShift's Service for the API server, in the control plane's
// namespace.
const APIServerService = "kube-apiserver"

// Labels of the objects that a bridge creates. They are the only record of the owner for objects outside
// of the bridge's namespace, where owner references cannot be used.
const (
	LabelNamespace = "dpf.hcp.bridge.com/namespace"
	LabelName      = "dpf.hcp.bridge.com/name"
	LabelUID       = "dpf.hcp.bridge.com/uid"
	LabelType      = "dpf.hcp.bridge.com/cluster-type"
)

// BridgeLabels returns the labels of an object that belongs to the bridge.
func BridgeLabels(bridge *v1alpha1.DPFHCPBridge) map[string]string {
	return map[string]string{
		LabelNamespace: bridge.Namespace, LabelName: bridge.Name, LabelUID: string(bridge.UID),
		LabelType: bridge.Spec.ClusterType,
	}
}

// ControlPlaneNamespace returns the namespace in which HyperShift runs the control plane of a
// HostedCluster.
func ControlPlaneNamespace(namespace, name string) string {
	return namespace + "-" + strings.ReplaceAll(name, ".", "-")
}

// SSHKeySecretName returns the name of the Secret with the SSH keys in the form that HyperShift needs.
func SSHKeySecretName(bridge string) string { return bridge + "-hcp-ssh-key" }

// EncryptionKeySecretName returns the name of the Secret with the key that encrypts Secrets in etcd.
func EncryptionKeySecretName(bridge string) string { return bridge + "-hcp-etcd-encryption-key" }

// Keys in these Secrets, as HyperShift reads them.
const (
	SSHKeyKey        = "id_rsa.pub"
	EncryptionKeyKey = "key"
)

type (
	fields = map[string]any
	list   = []any
)

// NewHostedCluster returns the desired HostedCluster of a bridge. If the bridge is exposed on node
// ports, address is the address of a node of the management cluster.
func NewHostedCluster(bridge *v1alpha1.DPFHCPBridge, address string) *unstructured.Unstructured {
	spec := bridge.Spec
	object := setMetadata(NewObject(HostedClusterKind()), bridge)
	object.Object["spec"] = withControlPlane(spec.ControlPlane, fields{
		"platform":   fields{"type": "None"},
		"release":    fields{"image": spec.OCPReleaseImage},
		"pullSecret": fields{"name": spec.PullSecretRef.Name},
		"sshKey":     fields{"name": SSHKeySecretName(bridge.Name)},
		"dns":        fields{"baseDomain": spec.BaseDomain},
		"networking": newNetworking(&spec.Networking),
		"etcd": fields{
			"managementType": "Managed",
			"managed": fields{"storage": fields{
				"type": "PersistentVolume",
				"persistentVolume": fields{
					"size": etcdSize, "storageClassName": spec.EtcdStorageClass,
				},
			}},
		},
		"secretEncryption": fields{
			"type": "aescbc", "aescbc": fields{"activeKey": fields{"name": EncryptionKeySecretName(bridge.Name)}},
		},
		"controllerAvailabilityPolicy":     string(spec.ControlPlaneAvailabilityPolicy),
		"infrastructureAvailabilityPolicy": string(spec.InfrastructureAvailabilityPolicy),
		"services":                         newServices(spec.ExposeThroughLoadBalancer, address),
	})

	return object
}

// newServices returns how each service of the control plane is published: through a load balancer and routes,
// or on node ports at the address of a node.
func newServices(usesLoadBalancer bool, address string) list {
	strategy := func(name string) fields {
		switch {
		case !usesLoadBalancer:
			return fields{"type": "NodePort", "nodePort": fields{"address": address}}
		case name == "APIServer":
			return fields{"type": "LoadBalancer"}
		default:
			return fields{"type": "Route"}
		}
	}

	var out list
	for _, name := range []string{"APIServer", "OAuthServer", "Konnectivity", "Ignition"} {
		out = append(out, fields{"service": name, "servicePublishingStrategy": strategy(name)})
	}

	return out
}

// NewNodePool returns the desired NodePool of a bridge with a release image. The NodePool has no
// replicas, because DPF provides the DPUs that join.
func NewNodePool(bridge *v1alpha1.DPFHCPBridge, image string) *unstructured.Unstructured {
	object := setMetadata(NewObject(NodePoolKind()), bridge)
	object.Object["spec"] = fields{
		"clusterName": bridge.Name,
		"replicas":    int64(0),
		"management":  fields{"upgradeType": "Replace", "autoRepair": false},
		"platform":    fields{"type": "None"},
		"release":     fields{"image": image},
	}

	return object
}

// setMetadata sets the name, the namespace and the labels of an object to those of the bridge, and
// makes the bridge its controller.
func setMetadata(object *unstructured.Unstructured, bridge *v1alpha1.DPFHCPBridge) *unstructured.Unstructured {
	object.SetNamespace(bridge.Namespace)
	object.SetName(bridge.Name)
	object.SetLabels(BridgeLabels(bridge))
	object.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(bridge, v1alpha1.GroupVersion.WithKind("DPFHCPBridge")),
	})

	return object
}

// NodeAddress returns the node address at which a HostedCluster is exposed on node ports. It is empty if
// the cluster is exposed in another way.
func NodeAddress(cluster *unstructured.Unstructured) string {
	published, _, _ := unstructured.NestedSlice(cluster.Object, "spec", "services")
	for _, item := range published {
		service, _ := item.(fields)
		if address, _, _ := unstructured.NestedString(service, "servicePublishingStrategy", "nodePort", "address"); address != "" {
			return address
		}
	}

	return ""
}

// Image returns the release image in an object's spec.
func Image(object *unstructured.Unstructured) string {
	return stringField(object, "spec", "release", "image")
}

// KubeconfigSecretName returns the name of the Secret with the administrator's kubeconfig. It is empty
// until HyperShift has created the Secret.
func KubeconfigSecretName(cluster *unstructured.Unstructured) string {
	return stringField(cluster, "status", "kubeconfig", "name")
}

// Endpoint returns the host and the port of the API server. They are empty until HyperShift reports
// them.
func Endpoint(cluster *unstructured.Unstructured) (host string, port int64) {
	host = stringField(cluster, "status", "controlPlaneEndpoint", "host")
	port, _ = intField(cluster, "status", "controlPlaneEndpoint", "port")

	return host, port
}

// Conditions returns the conditions of an object of another project, without their transition times.
func Conditions(object *unstructured.Unstructured) []metav1.Condition {
	items, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	out := make([]metav1.Condition, 0, len(items))

	for _, item := range items {
		values, _ := item.(fields)
		field := func(key string) string {
			value, _ := values[key].(string)

			return value
		}

		generation, _ := values["observedGeneration"].(int64)

		out = append(out, metav1.Condition{
			Type: field("type"), Status: metav1.ConditionStatus(field("status")), Reason: field("reason"), Message: field("message"),
			ObservedGeneration: generation,
		})
	}

	return out
}

// BlockingCondition returns the condition because of which HyperShift does not continue with the current
// spec of a HostedCluster, and nil if there is none. A condition of an earlier generation does not
// count. A missing pull secret does not block HyperShift (hostedcluster_controller.go, "Block here if
// the cluster configuration does not pass validation").
func BlockingCondition(cluster *unstructured.Unstructured) *metav1.Condition {
	conditions := Conditions(cluster)

	findCurrentFalse := func(name string) *metav1.Condition {
		c := meta.FindStatusCondition(conditions, name)
		if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration < cluster.GetGeneration() {
			return nil
		}

		return c
	}

	for _, name := range []string{ValidConfiguration, SupportedHostedCluster, ValidReleaseImage} {
		if c := findCurrentFalse(name); c != nil && c.Reason != reasonSecretNotFound {
			return c
		}
	}

	// The running version does not allow the upgrade, or reconciliation is paused. Neither affects a cluster
	// that already runs the desired release.
	if c := findCurrentFalse(Progressing); c != nil && c.Reason == reasonBlocked && !IsRolledOut(cluster) {
		return c
	}

	return nil
}

// IsRolledOut returns whether the control plane runs the release in its spec. If HyperShift reports
// controlPlaneVersion, its history decides. Otherwise the history of the cluster's version decides.
// During the first installation that history is completed only after workers have joined, so for a
// history with one entry the image alone decides.
func IsRolledOut(cluster *unstructured.Unstructured) bool {
	want := Image(cluster)

	if history := releaseHistory(cluster, "controlPlaneVersion"); len(history) > 0 {
		return history[0].image == want && history[0].state == stateCompleted
	}

	history := releaseHistory(cluster, "version")

	switch len(history) {
	case 0:
		return false
	case 1:
		return history[0].image == want
	default:
		return history[0].image == want && history[0].state == stateCompleted
	}
}

type releaseEntry struct{ image, state string }

// releaseHistory returns the releases that ran, the newest first.
func releaseHistory(cluster *unstructured.Unstructured, field string) []releaseEntry {
	items, _, _ := unstructured.NestedSlice(cluster.Object, "status", field, "history")
	out := make([]releaseEntry, 0, len(items))

	for _, item := range items {
		values, _ := item.(fields)
		image, _ := values["image"].(string)
		state, _ := values["state"].(string)
		out = append(out, releaseEntry{image, state})
	}

	return out
}
