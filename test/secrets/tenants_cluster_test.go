// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	kubevirtcrds "github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/sim/registry"
)

const (
	repository   = "openshift-release-dev/ocp-release"
	release      = "4.15.0-x86_64"
	storageClass = "fast"
)

// releaseImages is a registry of release images.
var releaseImages *httptest.Server

// withReleaseImages runs the registry while the tests run.
func withReleaseImages(run func() int) int {
	served := registry.New(registry.Options{Users: map[string]string{"user": "password"}})
	served.Push(repository, release)

	releaseImages = httptest.NewTLSServer(served)
	defer releaseImages.Close()

	return run()
}

// prepareCluster creates the objects of a management cluster: CRDs of other projects, a Node and a storage
// class.
func prepareCluster(ctx context.Context, config *rest.Config) error {
	err := errors.Join(kubevirtcrds.Install(ctx, config), crds.Install(ctx, config))
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

func newImageReference(host, tag string) string {
	return strings.TrimPrefix(host, "https://") + "/" + repository + ":" + tag
}
