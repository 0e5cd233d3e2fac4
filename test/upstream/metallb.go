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
	lookAt       = 20 * time.Millisecond
	grace        = 3 * time.Second
)

// Balancer is a running MetalLB.
type Balancer struct {
	client    client.Client
	namespace string
}

// MetalLB runs MetalLB's controller over an API server until the test's end, with its pools
// in the namespace, which is made. It gives Services their addresses; nobody announces them.
func MetalLB(t testing.TB, env *kube.Env, namespace string) *Balancer {
	t.Helper()

	bin := find(t, metalLB)
	install(t, env, namespace)

	logs := filepath.Join(t.TempDir(), "metallb.log")

	// Its webhooks listen on a port that is fixed: what they would refuse, the controller
	// refuses again when it reads its pools (internal/config, For).
	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: filepath.Join(bin, metalLB), LogPath: logs, Grace: grace,
		Env: append(os.Environ(), "KUBECONFIG="+env.Kubeconfig(t, env.Config)),
		Args: []string{
			"--namespace=" + namespace, "--pod-name=" + pod, "--webhook-mode=disabled", "--disable-cert-rotation",
			"--port=0", "--health-probe-port=" + port(t),
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

	if err := process.WaitReady(ctx, func(ctx context.Context) error { _, err := b.state(ctx); return err }); err != nil {
		t.Fatalf("start %s: %v", metalLB, err)
	}

	return b
}

// install makes what a controller looks for when it starts: its kinds, and a pod of its own.
func install(t testing.TB, env *kube.Env, namespace string) {
	t.Helper()

	dir, err := crds.MetalLB().Dir(t.Context())
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

// state is what the controller makes of its pools.
func (b *Balancer) state(ctx context.Context) (*unstructured.Unstructured, error) {
	state := &unstructured.Unstructured{}
	state.SetGroupVersionKind(schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "ConfigurationState"})

	key := client.ObjectKey{Namespace: b.namespace, Name: "controller"}
	if err := b.client.Get(ctx, key, state); err != nil {
		return nil, fmt.Errorf("read ConfigurationState: %w", err)
	}

	return state, nil
}

// Refuses is why MetalLB takes none of its pools as they are now; "" if it takes them.
func (b *Balancer) Refuses(t testing.TB) string {
	t.Helper()

	state, err := b.state(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	summary, _, _ := unstructured.NestedString(state.Object, "status", "errorSummary")

	return summary
}
