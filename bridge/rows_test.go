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
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
)

// row is a trouble, what is said of it, and what fixes it.
type row struct {
	name string
	// spoil makes the trouble, before the bridge is made. Without it all is well.
	spoil func(w *world, b *v1alpha1.DPFHCPBridge)
	// then goes on once the bridge is there.
	then func(w *world, b *v1alpha1.DPFHCPBridge)
	// condition says want, with a part of the message; Ready says ready.
	condition, want, message, ready string
	phase                           v1alpha1.DPFHCPBridgePhase
	// fix takes the trouble away; nil where a person would make another bridge.
	fix func(w *world, b *v1alpha1.DPFHCPBridge)
}

type (
	anyMap = map[string]any
	list   = []any
)

func (w *world) delete(object client.Object, namespace, name string) {
	w.t.Helper()
	object.SetNamespace(namespace)
	object.SetName(name)
	w.must(env.Client.Delete(w.t.Context(), object))
}

// data replaces what a Secret holds.
func (w *world) data(name, key, value string) {
	w.t.Helper()

	secret := &corev1.Secret{}
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, secret))
	secret.Data = map[string][]byte{key: []byte(value)}
	w.must(env.Client.Update(w.t.Context(), secret))
}

func (w *world) dpus1(status anyMap) {
	w.t.Helper()
	w.status(w.read(hypershift.New(hypershift.DPUClusterKind()), w.dpus, "b"), status)
}

func dpuClusterRows() []row {
	const condition = v1alpha1.ConditionDPUClusterValid

	ready := func(w *world, _ *v1alpha1.DPFHCPBridge) {
		w.dpus1(anyMap{"phase": "Ready", "nodesCount": int64(0)})
	}

	return []row{
		{
			name: "no DPUCluster",
			spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.delete(hypershift.New(hypershift.DPUClusterKind()), w.dpus, "b")
			},
			condition: condition, want: "False NotFound", message: "/b is not there: make it", phase: v1alpha1.PhasePending,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.dpuCluster("b", "Ready") },
		},
		{
			name:      "full DPUCluster",
			spoil:     func(w *world, _ *v1alpha1.DPFHCPBridge) { w.dpus1(anyMap{"phase": "Ready", "nodesCount": int64(10)}) },
			condition: condition, want: "False InsufficientResources", message: "has 10 nodes of 10: raise its maxNodes",
			phase: v1alpha1.PhasePending, fix: ready,
		},
		{
			name: "DPUCluster with a control plane of its own",
			spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				b.Spec.DPUClusterRef.Name = "kamaji"
				cluster := hypershift.New(hypershift.DPUClusterKind())
				cluster.SetNamespace(w.dpus)
				cluster.SetName("kamaji")
				cluster.Object["spec"] = anyMap{"type": "kamaji"}
				w.create(cluster)
			},
			condition: condition, want: "False InUse", message: "is of type kamaji", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "DPUCluster with another control plane",
			spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				cluster := w.read(hypershift.New(hypershift.DPUClusterKind()), w.dpus, "b")
				w.must(env.Client.Patch(w.t.Context(), cluster, merge(anyMap{"spec": anyMap{"kubeconfig": "other"}})))
			},
			condition: condition, want: "False InUse", message: "has the control plane of Secret other already", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "DPUCluster of another bridge",
			spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				first := w.bridge("a")
				first.Spec.DPUClusterRef = b.Spec.DPUClusterRef
				w.create(first)
				w.says(first, v1alpha1.ConditionHostedClusterCreated, "True Created", "")
			},
			condition: condition, want: "False InUse", message: "is served by bridge", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.delete(&v1alpha1.DPFHCPBridge{}, w.namespace, "a") },
		},
		{
			name: "DPUCluster is not ready any more", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.hyperShift(b)
				w.reaches(b, v1alpha1.PhaseReady)
				w.dpus1(anyMap{"phase": "NotReady"})
			},
			condition: condition, want: "False NotReady", message: "is in phase NotReady", phase: v1alpha1.PhaseFailed, fix: ready,
		},
		{
			name: "DPUCluster is full of its own nodes", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.hyperShift(b)
				w.reaches(b, v1alpha1.PhaseReady)
				w.dpus1(anyMap{"phase": "Ready", "nodesCount": int64(10)})
				w.says(b, v1alpha1.ConditionNodePoolReady, "True NodesReady", "10 DPUs have joined")
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
			name: "no " + name, spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.delete(&corev1.Secret{}, w.namespace, name) },
			condition: condition, want: "False NotFound", message: "/" + name + ": it does not exist: create it with the key \"" + key + "\"",
			phase: v1alpha1.PhasePending, fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.create(w.secret(name, key, good)) },
		}
	}
	holds := func(why, name, key, value, want, message, goodKey, good string) row {
		return row{
			name: why, spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.data(name, key, value) },
			condition: condition, want: "False " + want, message: message, phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.data(name, goodKey, good) },
		}
	}

	return []row{
		missing("ssh-key", v1alpha1.SSHKeySecretKey, sshKey),
		missing("pull-secret", v1alpha1.PullSecretKey, pull),
		holds("SSH key under another key", "ssh-key", "id_rsa.pub", sshKey, "KeyMissing",
			`has no key "ssh-publickey", or nothing in it: put the value there`, v1alpha1.SSHKeySecretKey, sshKey),
		holds("pull secret under another key", "pull-secret", "config.json", "{}", "KeyMissing",
			`has no key ".dockerconfigjson"`, v1alpha1.PullSecretKey, pull),
		holds("SSH key of words", "ssh-key", v1alpha1.SSHKeySecretKey, "not a key", "Unreadable",
			"line 1: it is no public key", v1alpha1.SSHKeySecretKey, sshKey),
		holds("pull secret of words", "pull-secret", v1alpha1.PullSecretKey, "words", "Unreadable",
			"it is no Docker configuration in JSON", v1alpha1.PullSecretKey, pull),
	}
}

func classRows() []row {
	const condition = v1alpha1.ConditionStorageClassValid

	return []row{
		{
			name: "no StorageClass", spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.delete(&storagev1.StorageClass{}, "", w.namespace) },
			condition: condition, want: "False NotFound", message: "is not there: make it", phase: v1alpha1.PhasePending,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "csi.example.com"})
			},
		},
		{
			name: "StorageClass of volumes made by hand", spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.delete(&storagev1.StorageClass{}, "", w.namespace)
				w.create(&storagev1.StorageClass{
					ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "kubernetes.io/no-provisioner",
				})
			},
			condition: condition, want: "False NotDynamic", message: "makes no volumes by itself", phase: v1alpha1.PhaseFailed,
		},
	}
}

func imageRows() []row {
	const condition = v1alpha1.ConditionReleaseImageValid

	names := func(why, image, want, message string, phase v1alpha1.DPFHCPBridgePhase) row {
		return row{
			name: why, spoil: func(_ *world, b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image },
			condition: condition, want: "False " + want, message: message, phase: phase,
			fix: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = w.image() })
			},
		}
	}
	return []row{
		names("tag that is not there", image("4.15.99-x86_64"), "ImageNotFound", "is not in its registry", v1alpha1.PhaseFailed),
		names("name that is none", registryHost()+"/a//b:1.2.3", "ImageNotFound", "parse image", v1alpha1.PhaseFailed),
		names("registry that does not answer", "127.0.0.1:1/openshift/release:4.15.0", "RegistryUnreachable",
			"registry 127.0.0.1:1 can't be asked", v1alpha1.PhasePending),
		names("version that HyperShift does not run", image("4.9.0-x86_64"), "VersionNotSupported",
			"HyperShift does not run OpenShift 4.9: choose an image of 4.16, 4.15", v1alpha1.PhaseFailed),
		{
			name: "wrong password", spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.data("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "wrong"))
			},
			condition: condition, want: "False ImageUnauthorized", message: "does not let the pull secret's login read", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.data("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "password"))
			},
		},
		{
			name: "image by digest", spoil: func(_ *world, b *v1alpha1.DPFHCPBridge) {
				b.Spec.OCPReleaseImage = registryHost() + "/" + repository + "@" + images.Push(repository, "")
			},
			condition: condition, want: "True Valid", phase: v1alpha1.PhaseProvisioning,
		},
	}
}

// image is the good one.
func (w *world) image() string { return image("4.15.0-x86_64") }

func (w *world) pool(name string, spec anyMap) *unstructured.Unstructured {
	w.t.Helper()

	pool := hypershift.New(hypershift.IPAddressPoolKind())
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

// takes makes a Service that has an address.
func (w *world) takes(name, address string) {
	w.t.Helper()

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
	}
	w.create(service)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	w.must(env.Client.Status().Update(w.t.Context(), service))
}

func addressRows() []row {
	const condition = v1alpha1.ConditionServiceExposureReady

	at := func(b *v1alpha1.DPFHCPBridge, address string) {
		b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address
	}
	asks := func(why, address, key string) row {
		return row{
			name: why, spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				at(b, address)
				w.create(&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "asks", Annotations: map[string]string{key: "fd00::1, " + address}},
					Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
				})
			},
			condition: condition, want: "False VIPConflict", message: "/asks has the address", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.delete(&corev1.Service{}, w.namespace, "asks") },
		}
	}

	return []row{
		{
			name: "address of a Service", spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				at(b, "10.3.0.1")
				w.takes("web", "10.3.0.1")
			},
			condition: condition, want: "False VIPConflict", message: "/web has the address 10.3.0.1: choose another, or free it", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.delete(&corev1.Service{}, w.namespace, "web") },
		},
		asks("address that a Service asks for", "10.3.0.2", hypershift.AnnotationAddress),
		asks("address that a Service asks for in the old way", "10.3.0.3", hypershift.AnnotationAddressOld),
		{
			name:      "address of no pool",
			spoil:     func(_ *world, b *v1alpha1.DPFHCPBridge) { at(b, "198.51.100.7") },
			condition: condition, want: "False VIPNotInPool", message: "no IPAddressPool has the address 198.51.100.7", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.pool("row-none", anyMap{"addresses": list{"198.51.100.0-198.51.100.9"}})
			},
		},
		{
			name: "address of a pool for others", spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				at(b, "198.51.100.77")
				w.pool("row-others", anyMap{
					"addresses": list{"198.51.100.64/28"}, "serviceAllocation": anyMap{"namespaces": list{"others"}},
				})
			},
			condition: condition, want: "False VIPNotInPool", message: "IPAddressPool row-others has the address 198.51.100.77 and does not serve namespace",
			phase: v1alpha1.PhaseFailed,
			fix: func(w *world, b *v1alpha1.DPFHCPBridge) {
				pool := w.read(hypershift.New(hypershift.IPAddressPoolKind()), metalLB, "row-others")
				w.must(env.Client.Patch(w.t.Context(), pool, merge(anyMap{"spec": anyMap{"serviceAllocation": anyMap{
					"namespaces": list{hypershift.ControlPlaneNamespace(b.Namespace, b.Name)},
				}}})))
			},
		},
		{
			name: "pool of that name", spoil: func(w *world, b *v1alpha1.DPFHCPBridge) {
				at(b, "10.3.0.4")
				w.pool(hypershift.PoolName(b.Namespace, b.Name), anyMap{"addresses": list{"203.0.113.1/32"}})
			},
			condition: condition, want: "False ServiceCreationFailed", message: "is there and does not belong to this bridge", phase: v1alpha1.PhaseFailed,
			ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
	}
}

// TestRows has a row for each documented condition and reason, on an API server with
// HyperShift's, MetalLB's and DPF's schemas, where the test itself plays all three.
func TestRows(t *testing.T) { //nolint:paralleltest // it plays HyperShift itself
	alone(t, clock.RealClock{}, crds.Install)

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
				row.check(newWorldAlone(t))
			})
		}
	})

	everyReason(t, rows)
}

func (r row) check(w *world) {
	w.t.Helper()
	w.dpuCluster("b", hypershift.PhaseReady)

	b := w.bridge("b")
	if r.spoil != nil {
		r.spoil(w, b)
	}

	w.create(b)

	if r.then != nil {
		r.then(w, b)
	}

	status, reason, _ := strings.Cut(r.want, " ")
	w.says(b, r.condition, r.want, r.message)
	got := w.reaches(b, r.phase)

	if r.ready == "" && status == "False" {
		r.ready = v1alpha1.ReasonValidationFailed
	}

	if r.ready != "" {
		w.says(b, v1alpha1.ConditionReady, map[bool]string{true: "True ", false: "False "}[r.phase == v1alpha1.PhaseReady]+r.ready, "")
	}

	if r.phase == v1alpha1.PhaseFailed && !strings.Contains(got.Status.Message, r.message) {
		w.t.Errorf("the status says %q", got.Status.Message)
	}

	if status == "False" && r.phase == v1alpha1.PhaseFailed {
		if r.condition == v1alpha1.ConditionReady {
			reason = string(v1alpha1.PhaseFailed) // Ready is told of by phases
		}

		w.warned(b, reason, true)
	}

	if r.fix != nil {
		r.fix(w, b)
		w.eventually(r.condition+" is fixed", func() bool {
			return !has(w.get(b), r.condition, r.want)
		})
	}
}
