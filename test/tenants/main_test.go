// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	kubevirtcrds "github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/sim/registry"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	repository   = "openshift-release-dev/ocp-release"
	release      = "4.15.0-x86_64"
	storageClass = "fast"
)

var (
	env *kube.Env
	// images is a registry of release images.
	images *httptest.Server
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())

	served := registry.New(registry.Options{Users: map[string]string{"user": "password"}})
	served.Push(repository, release)

	images = httptest.NewTLSServer(served)
	defer images.Close()

	return kube.Run(m, func(e *kube.Env) {
		env = e

		if err := prepare(context.Background()); err != nil {
			panic(err)
		}
	}, kube.WithCRDs("../../deploy/crds", "../../deploy/bridge/tenancy.yaml"), kube.WithControllerManager(),
		kube.WithScheme(v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme, virtv1.AddToScheme))
}

// prepare makes what a management cluster has: the kinds of other projects, a Node, a storage class.
func prepare(ctx context.Context) error {
	err := errors.Join(kubevirtcrds.Install(ctx, env.Config), crds.Install(ctx, env.Config))
	if err != nil {
		return err
	}

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: storageClass}, Provisioner: "csi.example.com"}

	if err := errors.Join(env.Client.Create(ctx, node), env.Client.Create(ctx, class)); err != nil {
		return fmt.Errorf("prepare the cluster: %w", err)
	}

	node.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.20.0.1"}, {Type: corev1.NodeHostName, Address: "node-a"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}

	return env.Client.Status().Update(ctx, node)
}

func image(host, tag string) string {
	return strings.TrimPrefix(host, "https://") + "/" + repository + ":" + tag
}
