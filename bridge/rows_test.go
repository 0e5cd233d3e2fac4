// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// row is a problem, how it is reported, and what fixes it.
type row struct {
	name string
	// breakState creates the problem before the bridge is created. Without it there is no problem.
	breakState func(w *fixture, b *v1alpha1.DPFHCPBridge)
	// afterCreate continues after the bridge is created.
	afterCreate func(w *fixture, b *v1alpha1.DPFHCPBridge)
	// condition must have the status and the reason in want, and message in its message. Ready must have
	// the reason in ready.
	condition, want, message, ready string
	phase                           v1alpha1.DPFHCPBridgePhase
	// fix removes the problem. It is nil if a person would create another bridge.
	fix func(w *fixture, b *v1alpha1.DPFHCPBridge)
}

type (
	anyMap = map[string]any
	list   = []any
)

func (w *fixture) delete(object client.Object, namespace, name string) {
	w.t.Helper()
	object.SetNamespace(namespace)
	object.SetName(name)
	w.must(env.Client.Delete(w.t.Context(), object))
}

// releaseSecret removes the finalizers of a Secret, as a person can.
func (w *fixture) releaseSecret(name string) {
	w.t.Helper()

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.must(env.Client.Patch(w.t.Context(), secret, mergePatch(anyMap{"metadata": anyMap{"finalizers": nil}})))
}

// setSecretData replaces the data of a Secret.
func (w *fixture) setSecretData(name, key, value string) {
	w.t.Helper()

	secret := &corev1.Secret{}
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, secret))
	secret.Data = map[string][]byte{key: []byte(value)}
	w.must(env.Client.Update(w.t.Context(), secret))
}

func (w *fixture) setDPUClusterStatus(status anyMap) {
	w.t.Helper()
	w.patchStatus(w.readObject(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "b"), status)
}

func dpuClusterRows() []row {
	const condition = v1alpha1.ConditionDPUClusterValid

	ready := func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
		w.setDPUClusterStatus(anyMap{"phase": "Ready", "nodesCount": int64(0)})
	}

	return []row{
		{
			name: "no DPUCluster",
			breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.delete(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "b")
			},
			condition: condition, want: "False NotFound", message: "/b does not exist: create it", phase: v1alpha1.PhasePending,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.createDPUCluster("b", "Ready") },
		},
		{
			name: "full DPUCluster",
			breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.setDPUClusterStatus(anyMap{"phase": "Ready", "nodesCount": int64(10)})
			},
			condition: condition, want: "False InsufficientResources", message: "has 10 of 10 nodes: raise its maxNodes",
			phase: v1alpha1.PhasePending, fix: ready,
		},
		{
			name: "DPUCluster with a control plane of its own",
			breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				b.Spec.DPUClusterRef.Name = "kamaji"
				cluster := hypershift.NewObject(hypershift.DPUClusterKind())
				cluster.SetNamespace(w.dpuNamespace)
				cluster.SetName("kamaji")
				cluster.Object["spec"] = anyMap{"type": "kamaji"}
				w.create(cluster)
			},
			condition: condition, want: "False InUse", message: "has type kamaji", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "DPUCluster with another control plane",
			breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				cluster := w.readObject(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "b")
				w.must(env.Client.Patch(w.t.Context(), cluster, mergePatch(anyMap{"spec": anyMap{"kubeconfig": "other"}})))
			},
			condition: condition, want: "False InUse", message: "already uses the control plane of Secret other", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "DPUCluster of another bridge",
			breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				first := w.newBridge("a")
				first.Spec.DPUClusterRef = b.Spec.DPUClusterRef
				w.create(first)
				w.waitForCondition(first, v1alpha1.ConditionHostedClusterCreated, "True Created", "")
			},
			condition: condition, want: "False InUse", message: "is served by bridge", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.delete(&v1alpha1.DPFHCPBridge{}, w.namespace, "a") },
		},
		{
			name: "DPUCluster is not ready yet",
			breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.setDPUClusterStatus(anyMap{"phase": "Pending"})
			},
			condition: condition, want: "False NotReady", message: "is in phase Pending", phase: v1alpha1.PhasePending, fix: ready,
		},
		{
			name: "DPUCluster is not ready any more", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				w.setDPUClusterStatus(anyMap{"phase": "NotReady"})
			},
			condition: condition, want: "False NotReady", message: "is in phase NotReady", phase: v1alpha1.PhaseFailed, fix: ready,
		},
		{
			name: "DPUCluster is created again", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				w.delete(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "b")
				w.waitForPhase(b, v1alpha1.PhaseFailed)
				w.createDPUCluster("b", hypershift.PhaseReady)
				w.eventually("the new DPUCluster has the kubeconfig", func() bool {
					cluster := w.readObject(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "b")

					return hypershift.DecodeDPUCluster(cluster).Kubeconfig == "b-hcp-kubeconfig"
				})
			},
			condition: condition, want: "True Valid", message: "is ready", phase: v1alpha1.PhaseReady,
		},
		{
			name: "DPUCluster is full of its own nodes", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				w.setDPUClusterStatus(anyMap{"phase": "Ready", "nodesCount": int64(10)})
				w.waitForCondition(b, v1alpha1.ConditionNodePoolReady, "True NodesReady", "10 DPUs have joined")
			},
			condition: condition, want: "True Valid", message: "is ready", phase: v1alpha1.PhaseReady,
		},
	}
}

func secretRows() []row {
	const condition = v1alpha1.ConditionSecretsValid

	pull := pullSecret("user", "password")

	missing := func(name, key, good string) row {
		return row{
			name: "no " + name, breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				// A Secret with this name in the namespace of the DPUCluster is not the bridge's.
				elsewhere := w.newSecret(name, key, good)
				elsewhere.Namespace = w.dpuNamespace
				w.create(elsewhere)
				w.delete(&corev1.Secret{}, w.namespace, name)
			},
			condition: condition, want: "False NotFound", message: "/" + name + ": it does not exist: create it with the key \"" + key + "\"",
			phase: v1alpha1.PhasePending, fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.create(w.newSecret(name, key, good)) },
		}
	}
	holds := func(why, name, key, value, want, message, goodKey, good string) row {
		return row{
			name: why, breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.setSecretData(name, key, value) },
			condition: condition, want: "False " + want, message: message, phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.setSecretData(name, goodKey, good) },
		}
	}

	return []row{
		missing("ssh-key", v1alpha1.SSHKeySecretKey, sshKey),
		missing("pull-secret", v1alpha1.PullSecretKey, pull),
		holds("SSH key under another key", "ssh-key", "id_rsa.pub", sshKey, "KeyMissing",
			`has no key "ssh-publickey", or the value is empty: add the value`, v1alpha1.SSHKeySecretKey, sshKey),
		holds("pull secret under another key", "pull-secret", "config.json", "{}", "KeyMissing",
			`has no key ".dockerconfigjson"`, v1alpha1.PullSecretKey, pull),
		holds("SSH key of words", "ssh-key", v1alpha1.SSHKeySecretKey, "not a key", "InvalidData",
			"line 1: it is not a public key", v1alpha1.SSHKeySecretKey, sshKey),
		holds("pull secret of words", "pull-secret", v1alpha1.PullSecretKey, "words", "InvalidData",
			"it is not a Docker configuration in JSON", v1alpha1.PullSecretKey, pull),
	}
}

func classRows() []row {
	const condition = v1alpha1.ConditionStorageClassValid

	return []row{
		{
			name: "no StorageClass", breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.delete(&storagev1.StorageClass{}, "", w.namespace) },
			condition: condition, want: "False NotFound", message: "does not exist: create it", phase: v1alpha1.PhasePending,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "csi.example.com"})
			},
		},
		{
			name: "StorageClass without a provisioner", breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.delete(&storagev1.StorageClass{}, "", w.namespace)
				w.create(&storagev1.StorageClass{
					ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "kubernetes.io/no-provisioner",
				})
			},
			condition: condition, want: "False NotDynamic", message: "does not provision volumes", phase: v1alpha1.PhaseFailed,
		},
	}
}

func imageRows() []row {
	const condition = v1alpha1.ConditionReleaseImageValid

	names := func(why, image, want, message string, phase v1alpha1.DPFHCPBridgePhase) row {
		return row{
			name: why, breakState: func(_ *fixture, b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image },
			condition: condition, want: "False " + want, message: message, phase: phase,
			fix: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = w.validImage() })
			},
		}
	}
	return []row{
		names("tag that is not there", image("4.15.99-x86_64"), "ImageNotFound", "does not exist in its registry", v1alpha1.PhaseFailed),
		names("name that is none", registryHost()+"/a//b:1.2.3", "ImageNotFound", "parse image", v1alpha1.PhaseFailed),
		names("registry that does not respond", "127.0.0.1:1/openshift/release:4.15.0", "RegistryUnreachable",
			"check image at registry 127.0.0.1:1", v1alpha1.PhasePending),
		names("version that HyperShift does not run", image("4.9.0-x86_64"), "VersionNotSupported",
			"HyperShift does not support OpenShift 4.9: choose an image of version 4.16, 4.15", v1alpha1.PhaseFailed),
		{
			name: "wrong password", breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.setSecretData("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "wrong"))
			},
			condition: condition, want: "False ImageUnauthorized", message: "does not allow the pull secret's login to read", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.setSecretData("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "password"))
			},
		},
		{
			name: "image by digest", breakState: func(_ *fixture, b *v1alpha1.DPFHCPBridge) {
				b.Spec.OCPReleaseImage = registryHost() + "/" + repository + "@" + images.Push(repository, "")
			},
			condition: condition, want: "True Valid", phase: v1alpha1.PhaseProvisioning,
		},
	}
}

// validImage returns an image that exists and is supported.
func (w *fixture) validImage() string { return image("4.15.0-x86_64") }

func (w *fixture) createPool(name string, spec anyMap) *unstructured.Unstructured {
	w.t.Helper()

	pool := hypershift.NewObject(hypershift.IPAddressPoolKind())
	pool.SetNamespace(metalLB)
	pool.SetName(name)
	pool.Object["spec"] = spec
	w.create(pool)
	w.t.Cleanup(func() {
		if err := client.IgnoreNotFound(env.Client.Delete(context.Background(), pool)); err != nil {
			w.t.Error(err)
		}
	})

	return pool
}

// createServiceWithAddress creates a Service that has an address.
func (w *fixture) createServiceWithAddress(name, address string) {
	w.t.Helper()

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
	}
	w.create(service)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	w.must(env.Client.Status().Update(w.t.Context(), service))
}

// createAPIServerService creates the Service of the API server as HyperShift creates it.
func (w *fixture) createAPIServerService(b *v1alpha1.DPFHCPBridge) {
	w.t.Helper()

	p := newReadyControlPlane()
	p.service.Spec.Type = corev1.ServiceTypeLoadBalancer
	p.service.Labels = map[string]string{"app": "kube-apiserver"}
	p.address = ""
	w.simulateHyperShift(b, p)
}

func addressRows() []row {
	const condition = v1alpha1.ConditionServiceExposureReady

	at := func(b *v1alpha1.DPFHCPBridge, address string) {
		b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address
	}
	asks := func(why, address, key string) row {
		return row{
			name: why, breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, address)
				w.create(&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "asks", Annotations: map[string]string{key: "fd00::1, " + address}},
					Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
				})
			},
			condition: condition, want: "False VIPConflict", message: "/asks has the address", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.delete(&corev1.Service{}, w.namespace, "asks") },
		}
	}

	return []row{
		{
			name: "address of a Service", breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, "10.3.0.1")
				w.createServiceWithAddress("web", "10.3.0.1")
			},
			condition: condition, want: "False VIPConflict", message: "/web has the address 10.3.0.1: choose another address, or release it there", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.delete(&corev1.Service{}, w.namespace, "web") },
		},
		asks("address that a Service requests", "10.3.0.2", hypershift.AnnotationAddress),
		asks("address that a Service requests with loadBalancerIP", "10.3.0.3", hypershift.AnnotationAddressDeprecated),
		{
			name:       "address of no pool",
			breakState: func(_ *fixture, b *v1alpha1.DPFHCPBridge) { at(b, "198.51.100.7") },
			condition:  condition, want: "False VIPNotInPool", message: "no IPAddressPool has the address 198.51.100.7", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.createPool("row-none", anyMap{"addresses": list{"198.51.100.0-198.51.100.9"}})
			},
		},
		{
			name: "address of a pool for others", breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, "198.51.100.77")
				w.createPool("row-others", anyMap{
					"addresses": list{"198.51.100.64/28"}, "serviceAllocation": anyMap{"namespaces": list{"others"}},
				})
			},
			condition: condition, want: "False VIPNotInPool", message: "IPAddressPool row-others has the address 198.51.100.77 but does not serve namespace",
			phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				pool := w.readObject(hypershift.NewObject(hypershift.IPAddressPoolKind()), metalLB, "row-others")
				w.must(env.Client.Patch(w.t.Context(), pool, mergePatch(anyMap{"spec": anyMap{"serviceAllocation": anyMap{
					"namespaces": list{hypershift.ControlPlaneNamespace(b.Namespace, b.Name)},
				}}})))
			},
		},
		{
			name: "address that its pool never assigns", breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, "198.51.100.255")
				w.createPool("row-avoids", anyMap{"addresses": list{"198.51.100.240-198.51.100.255"}, "avoidBuggyIPs": true})
			},
			condition: condition, want: "False VIPNotInPool",
			message: "IPAddressPool row-avoids has the address 198.51.100.255 but never assigns it, because avoidBuggyIPs is true",
			phase:   v1alpha1.PhaseFailed,
			fix: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "198.51.100.254" })
			},
		},
		{
			name: "address of a pool for other Services", breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, "198.51.100.129")
				w.createPool("row-selects", anyMap{
					"addresses":         list{"198.51.100.128/28"},
					"serviceAllocation": anyMap{"serviceSelectors": list{anyMap{"matchLabels": anyMap{"app": "web"}}}},
				})
			},
			afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) { w.createAPIServerService(b) },
			condition:   condition, want: "False VIPNotInPool",
			message: "IPAddressPool row-selects has the address 198.51.100.129 but its serviceSelectors do not select Service",
			phase:   v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				pool := w.readObject(hypershift.NewObject(hypershift.IPAddressPoolKind()), metalLB, "row-selects")
				w.must(env.Client.Patch(w.t.Context(), pool, mergePatch(anyMap{"spec": anyMap{"serviceAllocation": nil}})))
			},
		},
		{
			name: "pool of that name", breakState: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				at(b, "10.3.0.4")
				w.createPool(hypershift.PoolName(b.Namespace, b.Name), anyMap{"addresses": list{"203.0.113.1/32"}})
			},
			condition: condition, want: "False ServiceCreationFailed", message: "exists and does not belong to this bridge", phase: v1alpha1.PhaseFailed,
			ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
	}
}

// TestRows has a row for each documented condition and reason. It uses an API server with the schemas of
// HyperShift, MetalLB and DPF, and simulates all three itself.
func TestRows(t *testing.T) { //nolint:paralleltest // it simulates HyperShift itself
	runAreaAlone(t, clock.RealClock{}, installKinds)

	rows := append(dpuClusterRows(), secretRows()...)
	rows = append(rows, classRows()...)
	rows = append(rows, imageRows()...)
	rows = append(rows, addressRows()...)
	rows = append(rows, createdRows()...)
	rows = append(rows, readyRows()...)

	t.Run("rows", func(t *testing.T) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				row.check(newIsolatedFixture(t))
			})
		}
	})

	checkEveryReason(t, rows)
}

func (r row) check(w *fixture) {
	w.t.Helper()
	w.createDPUCluster("b", hypershift.PhaseReady)

	b := w.newBridge("b")
	if r.breakState != nil {
		r.breakState(w, b)
	}

	w.create(b)

	if r.afterCreate != nil {
		r.afterCreate(w, b)
	}

	status, reason, _ := strings.Cut(r.want, " ")
	w.waitForCondition(b, r.condition, r.want, r.message)
	got := w.waitForPhase(b, r.phase)

	if r.ready == "" && status == "False" {
		r.ready = v1alpha1.ReasonValidationFailed
	}

	if r.ready != "" {
		w.waitForCondition(b, v1alpha1.ConditionReady, map[bool]string{true: "True ", false: "False "}[r.phase == v1alpha1.PhaseReady]+r.ready, "")
	}

	if r.phase == v1alpha1.PhaseFailed && !strings.Contains(got.Status.Message, r.message) {
		w.t.Errorf("the status is %q", got.Status.Message)
	}

	if status == "False" && r.phase == v1alpha1.PhaseFailed {
		if r.condition == v1alpha1.ConditionReady {
			reason = string(v1alpha1.PhaseFailed) // events about Ready have the phase as reason
		}

		w.checkEvent(b, reason, true)
	}

	if r.fix != nil {
		r.fix(w, b)
		w.eventually(r.condition+" is fixed", func() bool {
			return !hasCondition(w.getBridge(b), r.condition, r.want)
		})
	}
}
