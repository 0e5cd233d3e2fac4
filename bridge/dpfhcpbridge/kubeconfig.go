// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// kubeconfigKey is the key in HyperShift's Secret. publishedKubeconfigKey is the key in the Secret
	// that DPF reads.
	kubeconfigKey          = "kubeconfig"
	publishedKubeconfigKey = "super-admin.conf"
	// defaultAPIPort is the port of the API server if HyperShift does not report one.
	defaultAPIPort = 6443
)

// kubeconfigSecretName returns the name of the Secret with the kubeconfig in the DPUCluster's namespace.
// A DPUCluster's spec.kubeconfig cannot be changed, so every bridge that serves the DPUCluster uses the
// same name.
func kubeconfigSecretName(cluster string) string { return cluster + "-hcp-kubeconfig" }

// readKubeconfig waits for the administrator's kubeconfig, keeps it for the later steps, and records the
// endpoints of the cluster in the status.
func readKubeconfig(ctx context.Context, s *scope) step.Result {
	name := hypershift.KubeconfigSecretName(s.hostedCluster)
	if name == "" {
		return step.Wait(resyncInterval, v1alpha1.ReasonWaitingForControlPlane, "HyperShift has not written the kubeconfig yet")
	}

	key := client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}

	secret, err := credential.ReadSecret(ctx, s.APIReader, key, kubeconfigKey)
	if credential.IsMissing(err) {
		return step.Wait(pollInterval, v1alpha1.ReasonWaitingForControlPlane, fmt.Sprintf("Secret %s has no kubeconfig yet", key))
	}

	if err != nil {
		return step.Fail(err)
	}

	s.kubeconfig = secret.Data[kubeconfigKey]
	s.bridge.Status.KubeconfigSecretRef = &v1alpha1.LocalObjectReference{Name: name}
	s.bridge.Status.APIEndpoint = s.apiEndpoint()
	s.bridge.Status.IngressEndpoint = "*.apps." + s.bridge.Name + "." + s.bridge.Spec.BaseDomain

	return step.Done()
}

// apiEndpoint returns the URL of the API server: its DNS name if it is exposed through a load balancer,
// and otherwise the node and the port that HyperShift reports.
func (s *scope) apiEndpoint() string {
	host, port := hypershift.Endpoint(s.hostedCluster)

	if s.bridge.Spec.ExposeThroughLoadBalancer || host == "" {
		host = "api." + s.bridge.Name + "." + s.bridge.Spec.BaseDomain
	}

	if port == 0 {
		port = defaultAPIPort
	}

	return "https://" + net.JoinHostPort(host, strconv.FormatInt(port, 10))
}

// publishKubeconfig writes the kubeconfig to a Secret in the DPUCluster's namespace and sets the
// Secret's name in the DPUCluster's spec.kubeconfig. That field can be set once and cannot be changed.
func publishKubeconfig(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)
	secret := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: kubeconfigSecretName(key.Name), Labels: hypershift.BridgeLabels(s.bridge),
		},
	}

	if err := s.applySecret(ctx, secret, map[string][]byte{publishedKubeconfigKey: s.kubeconfig}); err != nil {
		return step.FromError(err, resyncInterval)
	}

	if s.dpuCluster.Kubeconfig == secret.Name {
		return step.Done()
	}

	object := hypershift.NewObject(hypershift.DPUClusterKind())
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)

	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"kubeconfig": secret.Name}})
	if err != nil {
		return step.Fail(fmt.Errorf("encode patch of DPUCluster %s: %w", key, err))
	}

	err = s.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if err != nil {
		return step.FromError(s.newWriteError(err, "patch", object, v1alpha1.ReasonWaitingForInfrastructure), resyncInterval)
	}

	return step.Done()
}

// deletePublishedKubeconfig deletes the Secret with the kubeconfig from the DPUCluster's namespace. The
// DPUCluster still names the Secret, because its spec.kubeconfig cannot be changed.
func deletePublishedKubeconfig(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	if err := s.deleteSecret(ctx, client.ObjectKey{Namespace: key.Namespace, Name: kubeconfigSecretName(key.Name)}); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}
