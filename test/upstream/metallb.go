// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	metalLB = "metallb-controller"
	pod     = "metallb-controller"

	startTimeout = time.Minute
	pollInterval = 20 * time.Millisecond
	grace        = 3 * time.Second
)

// Balancer is a running MetalLB controller.
type Balancer struct {
	client    client.Client
	namespace string
}

// StartMetalLB runs MetalLB's controller with an API server until the test ends. It creates the namespace
// for MetalLB's pools. The controller allocates addresses to Services, but nothing announces the addresses
// on the network.
func StartMetalLB(t testing.TB, env *kube.Env, namespace string) *Balancer {
	t.Helper()

	bin := findBinary(t, metalLB)
	install(t, env, namespace)

	logs := filepath.Join(t.TempDir(), "metallb.log")

	// Disable the webhooks, because they listen on a fixed port. The controller makes the same checks when it
	// reads its pools (internal/config, For).
	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: filepath.Join(bin, metalLB), LogPath: logs, GracePeriod: grace,
		Env: append(os.Environ(), "KUBECONFIG="+env.Kubeconfig(t, env.Config)),
		Args: []string{
			"--namespace=" + namespace, "--pod-name=" + pod, "--webhook-mode=disabled", "--disable-cert-rotation",
			"--port=0", "--health-probe-port=" + pickPort(t),
		},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Errorf("stop %s: %v", metalLB, err)
		}

		if data, err := os.ReadFile(logs); t.Failed() && err == nil {
			t.Logf("%s: %s", metalLB, data)
		}
	})

	b := &Balancer{env.Client, namespace}

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, func(ctx context.Context) error { _, err := b.readState(ctx); return err }); err != nil {
		t.Fatalf("start %s: %v", metalLB, err)
	}

	return b
}

// install creates the objects that the controller needs when it starts: its CRDs, its namespace, and its
// own pod.
func install(t testing.TB, env *kube.Env, namespace string) {
	t.Helper()

	dir, err := crds.MetalLBModule().Download(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if err := kubeproc.Apply(t.Context(), env.Config, filepath.Join(dir, "config", "crd", "bases")); err != nil {
		t.Fatal(err)
	}

	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "controller", Image: "metallb"}}},
		},
	} {
		if err := env.Client.Create(t.Context(), object); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// readState reads the controller's ConfigurationState, which reports whether its pools are valid.
func (b *Balancer) readState(ctx context.Context) (*unstructured.Unstructured, error) {
	state := &unstructured.Unstructured{}
	state.SetGroupVersionKind(schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "ConfigurationState"})

	key := client.ObjectKey{Namespace: b.namespace, Name: "controller"}
	if err := b.client.Get(ctx, key, state); err != nil {
		return nil, fmt.Errorf("get ConfigurationState: %w", err)
	}

	return state, nil
}

// ConfigurationError returns the reason for which MetalLB rejects the configuration of its pools, "" if it
// accepts the configuration.
func (b *Balancer) ConfigurationError(t testing.TB) string {
	t.Helper()

	state, err := b.readState(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	summary, _, _ := unstructured.NestedString(state.Object, "status", "errorSummary")

	return summary
}
