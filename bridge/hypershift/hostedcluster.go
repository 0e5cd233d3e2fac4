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

// etcdSize is that of etcd's volumes.
const etcdSize = "8Gi"

// Conditions and states of a HostedCluster
// (https://hypershift-docs.netlify.app/reference/api/, HostedClusterStatus).
const (
	Available   = "Available"
	Progressing = "Progressing"
	Degraded    = "Degraded"
	// ValidConfiguration and the next two: HyperShift makes and changes nothing of a cluster
	// while one of them is False.
	ValidConfiguration     = "ValidConfiguration"
	SupportedHostedCluster = "SupportedHostedCluster"
	ValidReleaseImage      = "ValidReleaseImage"
	// ReconciliationSucceeded has the error of HyperShift's last pass.
	ReconciliationSucceeded = "ReconciliationSucceeded"
	reasonSecretNotFound    = "SecretNotFound" // #nosec G101 -- a word
	reasonBlocked           = "Blocked"
	stateCompleted          = "Completed"
)

// APIServerService is HyperShift's Service of the API server, in the control plane's
// namespace.
const APIServerService = "kube-apiserver"

// Labels of what a bridge makes outside of its own namespace, where no owner reference can
// lead to it, and of what it makes at home.
const (
	LabelNamespace = "dpf.hcp.bridge.com/namespace"
	LabelName      = "dpf.hcp.bridge.com/name"
	LabelUID       = "dpf.hcp.bridge.com/uid"
	LabelType      = "dpf.hcp.bridge.com/cluster-type"
)

// Labels of an object that belongs to a bridge.
func Labels(bridge *v1alpha1.DPFHCPBridge) map[string]string {
	return map[string]string{
		LabelNamespace: bridge.Namespace, LabelName: bridge.Name, LabelUID: string(bridge.UID),
		LabelType: bridge.Spec.ClusterType,
	}
}

// ControlPlaneNamespace is where HyperShift runs a HostedCluster's control plane.
func ControlPlaneNamespace(namespace, name string) string {
	return namespace + "-" + strings.ReplaceAll(name, ".", "-")
}

// SSHKeyName is the Secret with the SSH keys under the name that HyperShift wants them by.
func SSHKeyName(bridge string) string { return bridge + "-hcp-ssh-key" }

// EncryptionKeyName is the Secret with the key that etcd's Secrets are encrypted with.
func EncryptionKeyName(bridge string) string { return bridge + "-hcp-etcd-encryption-key" }

// Keys of those Secrets, as HyperShift reads them.
const (
	SSHKeyKey        = "id_rsa.pub"
	EncryptionKeyKey = "key"
)

type (
	fields = map[string]any
	list   = []any
)

// HostedCluster is the hosted control plane that a bridge wants. The address is that of a
// node of the management cluster, for a bridge that is exposed on nodes' ports.
func HostedCluster(bridge *v1alpha1.DPFHCPBridge, address string) *unstructured.Unstructured {
	spec := bridge.Spec
	object := owned(New(HostedClusterKind()), bridge)
	object.Object["spec"] = placed(spec.ControlPlane, fields{
		"platform":   fields{"type": "None"},
		"release":    fields{"image": spec.OCPReleaseImage},
		"pullSecret": fields{"name": spec.PullSecretRef.Name},
		"sshKey":     fields{"name": SSHKeyName(bridge.Name)},
		"dns":        fields{"baseDomain": spec.BaseDomain},
		"networking": networking(&spec.Networking),
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
			"type": "aescbc", "aescbc": fields{"activeKey": fields{"name": EncryptionKeyName(bridge.Name)}},
		},
		"controllerAvailabilityPolicy":     string(spec.ControlPlaneAvailabilityPolicy),
		"infrastructureAvailabilityPolicy": string(spec.InfrastructureAvailabilityPolicy),
		"services":                         services(spec.ExposeThroughLoadBalancer, address),
	})

	return object
}

// services says how the control plane's services are published.
func services(loadBalancer bool, address string) list {
	strategy := func(name string) fields {
		switch {
		case !loadBalancer:
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

// NodePool is the pool of workers that a bridge wants, with a release image: it makes no
// machines, because DPF brings the DPUs that join.
func NodePool(bridge *v1alpha1.DPFHCPBridge, image string) *unstructured.Unstructured {
	object := owned(New(NodePoolKind()), bridge)
	object.Object["spec"] = fields{
		"clusterName": bridge.Name,
		"replicas":    int64(0),
		"management":  fields{"upgradeType": "Replace", "autoRepair": false},
		"platform":    fields{"type": "None"},
		"release":     fields{"image": image},
	}

	return object
}

// owned names an object after a bridge, in the bridge's namespace and as its own.
func owned(object *unstructured.Unstructured, bridge *v1alpha1.DPFHCPBridge) *unstructured.Unstructured {
	object.SetNamespace(bridge.Namespace)
	object.SetName(bridge.Name)
	object.SetLabels(Labels(bridge))
	object.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(bridge, v1alpha1.GroupVersion.WithKind("DPFHCPBridge")),
	})

	return object
}

// NodeAddress is the address that a HostedCluster is exposed at on nodes' ports; empty for
// one that isn't.
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

// Image is the release that an object's spec names.
func Image(object *unstructured.Unstructured) string { return text(object, "spec", "release", "image") }

// Kubeconfig is the Secret with the administrator's kubeconfig; empty until there is one.
func Kubeconfig(cluster *unstructured.Unstructured) string {
	return text(cluster, "status", "kubeconfig", "name")
}

// Endpoint is where the API server is reached, once HyperShift knows.
func Endpoint(cluster *unstructured.Unstructured) (host string, port int64) {
	host = text(cluster, "status", "controlPlaneEndpoint", "host")
	port, _ = number(cluster, "status", "controlPlaneEndpoint", "port")

	return host, port
}

// Conditions of an object of another project.
func Conditions(object *unstructured.Unstructured) []metav1.Condition {
	items, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	out := make([]metav1.Condition, 0, len(items))

	for _, item := range items {
		values, _ := item.(fields)
		read := func(key string) string {
			value, _ := values[key].(string)

			return value
		}

		generation, _ := values["observedGeneration"].(int64)

		out = append(out, metav1.Condition{
			Type: read("type"), Status: metav1.ConditionStatus(read("status")), Reason: read("reason"), Message: read("message"),
			ObservedGeneration: generation,
		})
	}

	return out
}

// Refused is the condition for which HyperShift goes no further with a HostedCluster as it is
// now; nil if there is none. HyperShift does go on without a pull secret
// (hostedcluster_controller.go, "Block here if the cluster configuration does not pass
// validation"). A word about an earlier spec does not count.
func Refused(cluster *unstructured.Unstructured) *metav1.Condition {
	conditions := Conditions(cluster)

	current := func(name string) *metav1.Condition {
		c := meta.FindStatusCondition(conditions, name)
		if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration < cluster.GetGeneration() {
			return nil
		}

		return c
	}

	for _, name := range []string{ValidConfiguration, SupportedHostedCluster, ValidReleaseImage} {
		if c := current(name); c != nil && c.Reason != reasonSecretNotFound {
			return c
		}
	}

	// An upgrade that the running version does not allow, or reconciliation that is paused:
	// neither hurts a cluster that has what is wanted.
	if c := current(Progressing); c != nil && c.Reason == reasonBlocked && !RolledOut(cluster) {
		return c
	}

	return nil
}

// RolledOut says whether the control plane runs the release of its spec. HyperShift with
// controlPlaneVersion says so of the control plane alone. Without it the cluster's version
// has to do: that of a first installation is complete only when workers have joined, and is
// therefore not waited for.
func RolledOut(cluster *unstructured.Unstructured) bool {
	want := Image(cluster)

	if history := history(cluster, "controlPlaneVersion"); len(history) > 0 {
		return history[0].image == want && history[0].state == stateCompleted
	}

	history := history(cluster, "version")

	switch len(history) {
	case 0:
		return false
	case 1:
		return history[0].image == want
	default:
		return history[0].image == want && history[0].state == stateCompleted
	}
}

type entry struct{ image, state string }

// history reads the releases that ran, the newest first.
func history(cluster *unstructured.Unstructured, field string) []entry {
	items, _, _ := unstructured.NestedSlice(cluster.Object, "status", field, "history")
	out := make([]entry, 0, len(items))

	for _, item := range items {
		values, _ := item.(fields)
		image, _ := values["image"].(string)
		state, _ := values["state"].(string)
		out = append(out, entry{image, state})
	}

	return out
}
