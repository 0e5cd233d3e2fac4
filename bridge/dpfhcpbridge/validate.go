// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// checkPlatform checks that the projects that the bridge needs are installed.
func checkPlatform(_ context.Context, s *scope) step.Result {
	switch {
	case !s.installed.dpf.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonDPFNotInstalled,
			"the CRDs of DPUCluster and DPUFlavor do not exist: install NVIDIA DPF")
	case !s.installed.hyperShift.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonHyperShiftNotInstalled,
			"the CRDs of HostedCluster and NodePool do not exist: install HyperShift")
	case s.bridge.Spec.ExposeThroughLoadBalancer && !s.installed.metalLB.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonMetalLBNotInstalled,
			"the CRDs of IPAddressPool and L2Advertisement do not exist: install MetalLB, "+
				"or create a bridge with exposeThroughLoadBalancer: false")
	default:
		return step.Done().WithReason(v1alpha1.ReasonInstalled, "all projects that the bridge needs are installed")
	}
}

// dpuClusterKey returns the key of the DPUCluster that the bridge names.
func dpuClusterKey(bridge *v1alpha1.DPFHCPBridge) client.ObjectKey {
	return client.ObjectKey{Namespace: bridge.Spec.DPUClusterRef.Namespace, Name: bridge.Spec.DPUClusterRef.Name}
}

// validateDPUCluster checks that the DPUCluster exists, is ready, does not belong to another bridge, and
// can take more nodes if the hosted cluster is not created yet.
func validateDPUCluster(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	object, err := s.getObject(ctx, s.Cache, hypershift.DPUClusterKind(), key)
	if err != nil {
		return step.Fail(err)
	}

	if object == nil {
		return step.Wait(resyncInterval, v1alpha1.ReasonNotFound, fmt.Sprintf("DPUCluster %s does not exist: create it", key))
	}

	s.dpuCluster = hypershift.DecodeDPUCluster(object)

	if s.dpuCluster.Type == hypershift.TypeKamaji {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s has type kamaji and gets its control plane from Kamaji: "+
				"delete this bridge, and create one with a DPUCluster of type static", key))
	}

	if secret := s.dpuCluster.Kubeconfig; secret != "" && secret != kubeconfigSecretName(key.Name) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s already uses the control plane of Secret %s, which cannot be changed: "+
				"delete this bridge, and create one with a DPUCluster without spec.kubeconfig", key, secret))
	}

	first, err := s.findOwner(ctx, indexDPUCluster, key.String())
	if err != nil {
		return step.Fail(err)
	}

	if first != client.ObjectKeyFromObject(s.bridge) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s is served by bridge %s: delete that bridge, "+
				"or delete this one and create it with another DPUCluster", key, first))
	}

	if s.dpuCluster.Phase != hypershift.PhaseReady {
		return step.Wait(resyncInterval, v1alpha1.ReasonNotReady,
			fmt.Sprintf("DPUCluster %s is in phase %s", key, cmp.Or(s.dpuCluster.Phase, "(none yet)")))
	}

	// If the hosted cluster is created already, the nodes of the DPUCluster are its own nodes.
	if !s.hasCreatedHostedCluster() && s.dpuCluster.FreeNodes() == 0 {
		return step.Wait(resyncInterval, v1alpha1.ReasonInsufficientResources,
			fmt.Sprintf("DPUCluster %s has %d of %d nodes: raise its maxNodes, or remove nodes",
				key, s.dpuCluster.Nodes, s.dpuCluster.MaxNodes))
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, fmt.Sprintf("DPUCluster %s is ready", key))
}

// findOwner returns the bridge that takes precedence among this bridge and all bridges with the value in
// the index. All bridges compute the same result.
func (s *scope) findOwner(ctx context.Context, index, value string) (client.ObjectKey, error) {
	var bridges v1alpha1.DPFHCPBridgeList
	if err := s.Client.List(ctx, &bridges, client.MatchingFields{index: value}); err != nil {
		return client.ObjectKey{}, fmt.Errorf("list bridges with %s %s: %w", index, value, err)
	}

	winner := s.bridge.DeepCopy()
	if len(bridges.Items) == 1 && bridges.Items[0].UID == s.bridge.UID {
		return client.ObjectKeyFromObject(winner), nil
	}

	if err := s.restoreHostedClusterRef(ctx, winner); err != nil {
		return client.ObjectKey{}, err
	}

	for i := range bridges.Items {
		if err := s.restoreHostedClusterRef(ctx, &bridges.Items[i]); err != nil {
			return client.ObjectKey{}, err
		}

		if hasPrecedence(&bridges.Items[i], winner) {
			winner = &bridges.Items[i]
		}
	}

	return client.ObjectKeyFromObject(winner), nil
}

// restoreHostedClusterRef sets the HostedCluster in the status of a bridge that has created one and whose status
// does not say so, because the status was lost. The status is not saved.
func (s *scope) restoreHostedClusterRef(ctx context.Context, bridge *v1alpha1.DPFHCPBridge) error {
	if bridge.Status.HostedClusterRef != nil || !s.installed.hyperShift.Load() {
		return nil
	}

	key := client.ObjectKeyFromObject(bridge)
	cluster := hypershift.NewObject(hypershift.HostedClusterKind())

	err := s.Cache.Get(ctx, key, cluster)
	hasCluster := err == nil && belongsTo(cluster, bridge)

	if err == nil || apierrors.IsNotFound(err) {
		// The HostedCluster may be lost, too.
		var secret corev1.Secret

		name := hypershift.EncryptionKeySecretName(bridge.Name)
		err = s.APIReader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &secret)
		hasCluster = hasCluster || err == nil && secret.Annotations[annotationCreated] != "" && belongsTo(&secret, bridge)
	}

	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("find HostedCluster of bridge %s: %w", key, err)
	}

	if hasCluster {
		bridge.Status.HostedClusterRef = &v1alpha1.ObjectReference{Namespace: key.Namespace, Name: key.Name}
	}

	return nil
}

// hasPrecedence returns whether bridge a takes precedence over bridge b: a bridge that has created its
// HostedCluster precedes a bridge that has not, and an older bridge precedes a newer one.
func hasPrecedence(a, b *v1alpha1.DPFHCPBridge) bool {
	hasClusterA, hasClusterB := a.Status.HostedClusterRef != nil, b.Status.HostedClusterRef != nil
	if hasClusterA != hasClusterB {
		return hasClusterA
	}

	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return a.UID < b.UID
}

// secretData holds the content of the bridge's Secrets.
type secretData struct {
	sshKeys []byte
	logins  credentials.DockerConfig
	// pullSecret is the metadata of the pull secret.
	pullSecret metav1.ObjectMeta
	// pullSecretVersion identifies the content of the pull secret: its UID and its resource version.
	pullSecretVersion string
}

// validateSecrets reads and validates the Secrets that the bridge names. The cache does not hold the
// content of Secrets, only their metadata.
func validateSecrets(ctx context.Context, s *scope) step.Result {
	ssh, stop := s.readSecret(ctx, s.bridge.Spec.SSHKeySecretRef.Name, v1alpha1.SSHKeySecretKey)
	if stop != nil {
		return *stop
	}

	s.secrets.sshKeys = ssh.Data[v1alpha1.SSHKeySecretKey]
	if err := credentials.CheckSSHKeys(s.secrets.sshKeys); err != nil {
		return stallUnreadable(ssh, v1alpha1.SSHKeySecretKey, err)
	}

	pull, stop := s.readSecret(ctx, s.bridge.Spec.PullSecretRef.Name, v1alpha1.PullSecretKey)
	if stop != nil {
		return *stop
	}

	var err error
	if s.secrets.logins, err = credentials.ParseDockerConfig(pull.Data[v1alpha1.PullSecretKey]); err != nil {
		return stallUnreadable(pull, v1alpha1.PullSecretKey, err)
	}

	s.secrets.pullSecret, s.secrets.pullSecretVersion = pull.ObjectMeta, string(pull.UID)+"/"+pull.ResourceVersion

	return step.Done().WithReason(v1alpha1.ReasonValid, "both Secrets exist and are valid")
}

// readSecret reads a Secret that must have the key. If the Secret or the key is missing or cannot be
// read, readSecret returns the result with which the step stops.
func (s *scope) readSecret(ctx context.Context, name, key string) (secret *corev1.Secret, stop *step.Result) {
	secret, err := credential.ReadSecret(ctx, s.APIReader, client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}, key)

	if err == nil {
		return secret, nil
	}

	var result step.Result

	switch errclass.ReasonOf(err, "") {
	case credential.ReasonSecretNotFound:
		result = step.Wait(resyncInterval, v1alpha1.ReasonNotFound, err.Error())
	case credential.ReasonSecretKeyNotFound:
		result = step.Stall(v1alpha1.ReasonKeyMissing, err.Error())
	default:
		result = step.Fail(err)
	}

	return nil, &result
}

func stallUnreadable(secret *corev1.Secret, key string, err error) step.Result {
	return step.Stall(v1alpha1.ReasonInvalidData, fmt.Sprintf("Secret %s/%s, key %s: %v", secret.Namespace, secret.Name, key, err))
}

// noProvisioner is the provisioner of a StorageClass without dynamic provisioning
// (https://kubernetes.io/docs/concepts/storage/storage-classes/#local).
const noProvisioner = "kubernetes.io/no-provisioner"

// validateStorageClass checks that etcd's StorageClass exists and provisions volumes dynamically. A
// StorageClass does not declare that its volumes support ReadWriteOnce. Every provisioner of file
// systems and block devices supports it.
func validateStorageClass(ctx context.Context, s *scope) step.Result {
	name := s.bridge.Spec.EtcdStorageClass

	var class storagev1.StorageClass

	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &class)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(resyncInterval, v1alpha1.ReasonNotFound, fmt.Sprintf("StorageClass %s does not exist: create it", name))
	case err != nil:
		return step.Fail(fmt.Errorf("get StorageClass %s: %w", name, err))
	case class.Provisioner == noProvisioner:
		return step.Stall(v1alpha1.ReasonNotDynamic,
			fmt.Sprintf("StorageClass %s does not provision volumes: create a bridge with a StorageClass that does", name))
	default:
		return step.Done().WithReason(v1alpha1.ReasonValid,
			fmt.Sprintf("StorageClass %s provisions volumes with %s", name, class.Provisioner))
	}
}

// supportedVersionsName is the name of HyperShift's ConfigMap, and of the key in it, with the OpenShift
// minor versions that HyperShift can run (hypershift-operator/controllers/supportedversion).
const supportedVersionsName = "supported-versions"

// validateReleaseImage checks that HyperShift can run the release's version and that the registry has
// the image. If the HostedCluster already has the image, nothing is checked, so that an unavailable
// registry does not affect a running cluster.
func validateReleaseImage(ctx context.Context, s *scope) step.Result {
	image := s.bridge.Spec.OCPReleaseImage
	if s.hostedCluster != nil && hypershift.Image(s.hostedCluster) == image {
		return step.Done().WithReason(v1alpha1.ReasonValid, "the HostedCluster already has the image")
	}

	if ref, err := release.Parse(image); err == nil { // otherwise, Images.Check reports the error
		if result := s.checkVersionSupported(ctx, ref); !result.IsDone() {
			return result
		}

		// Each registry gets only its own login of the pull secret. So the secret has to allow this registry only if it
		// has a login for it.
		if _, hasLogin := s.secrets.logins.LoginFor(ref.Registry + "/" + ref.Repository); hasLogin {
			if err := credential.CheckDestination(&s.secrets.pullSecret, credential.NewDestination(ref.Registry), nil); err != nil {
				return step.FromError(err, resyncInterval)
			}
		}
	}

	if err := s.Images.Check(ctx, image, s.secrets.logins, s.secrets.pullSecretVersion); err != nil {
		return step.FromError(err, resyncInterval)
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, "the registry has the image, and the pull secret may read it")
}

// checkVersionSupported checks that HyperShift's list has the release's minor version. If there is no
// list, or the image's tag has no version, it checks nothing.
func (s *scope) checkVersionSupported(ctx context.Context, ref release.Reference) step.Result {
	minor, hasVersion := ref.MinorVersion()
	if !hasVersion {
		return step.Done()
	}

	var supported corev1.ConfigMap

	err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: s.HyperShiftNamespace, Name: supportedVersionsName}, &supported)
	if apierrors.IsNotFound(err) {
		return step.Done()
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get ConfigMap %s/%s: %w", s.HyperShiftNamespace, supportedVersionsName, err))
	}

	var content struct {
		Versions []string `json:"versions"`
	}
	if err := json.Unmarshal([]byte(supported.Data[supportedVersionsName]), &content); err != nil || len(content.Versions) == 0 {
		return step.Done()
	}

	if slices.Contains(content.Versions, minor) {
		return step.Done()
	}

	return step.Stall(v1alpha1.ReasonVersionNotSupported, fmt.Sprintf(
		"HyperShift does not support OpenShift %s: choose an image of version %s, or upgrade HyperShift",
		minor, strings.Join(content.Versions, ", ")))
}
