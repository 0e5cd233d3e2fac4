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
	// kubeconfigKey is the key of HyperShift's Secret, handedOverKey that of the one which
	// DPF reads.
	kubeconfigKey = "kubeconfig"
	handedOverKey = "super-admin.conf"
	// apiPort is the port of an API server behind a load balancer.
	apiPort = 6443
)

// kubeconfigThere waits for the administrator's kubeconfig, and says where the cluster is.
func kubeconfigThere(ctx context.Context, s *scope) step.Result {
	name := hypershift.Kubeconfig(s.cluster)
	if name == "" {
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane, "HyperShift has not written the kubeconfig yet")
	}

	key := client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}

	secret, err := credential.Read(ctx, s.Live, key, kubeconfigKey)
	if credential.Missing(err) {
		return step.Wait(lookSoon, v1alpha1.ReasonWaitingForControlPlane, fmt.Sprintf("Secret %s has no kubeconfig yet", key))
	}

	if err != nil {
		return step.Fail(err)
	}

	s.kubeconfig = secret.Data[kubeconfigKey]
	s.bridge.Status.KubeconfigSecretRef = &v1alpha1.LocalObjectReference{Name: name}
	s.bridge.Status.APIEndpoint = s.endpoint()
	s.bridge.Status.IngressEndpoint = "*.apps." + s.bridge.Name + "." + s.bridge.Spec.BaseDomain

	return step.Done()
}

// endpoint is the API server's URL: by its name at a load balancer, else by the node and
// port that HyperShift tells.
func (s *scope) endpoint() string {
	host, port := hypershift.Endpoint(s.cluster)

	if s.bridge.Spec.ExposeThroughLoadBalancer || host == "" {
		host = "api." + s.bridge.Name + "." + s.bridge.Spec.BaseDomain
	}

	if port == 0 {
		port = apiPort
	}

	return "https://" + net.JoinHostPort(host, strconv.FormatInt(port, 10))
}

// kubeconfigHandedOver gives the DPUCluster the way to its control plane: a Secret in its
// namespace, and the Secret's name in its spec, which can be set once and never changed.
func kubeconfigHandedOver(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)
	secret := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: handedOverName(key.Name), Labels: hypershift.Labels(s.bridge),
		},
	}

	if err := s.keep(ctx, secret, map[string][]byte{handedOverKey: s.kubeconfig}); err != nil {
		return step.ForError(err, lookAgain)
	}

	if s.dpus.Kubeconfig == secret.Name {
		return step.Done()
	}

	object := hypershift.New(hypershift.DPUClusterKind())
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)

	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"kubeconfig": secret.Name}})
	if err != nil {
		return step.Fail(fmt.Errorf("write patch of DPUCluster %s: %w", key, err))
	}

	err = s.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if err != nil {
		return step.ForError(s.refused(err, "patch", object, v1alpha1.ReasonWaitingForInfrastructure), lookAgain)
	}

	return step.Done()
}
