// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// bfcfgTemplatePrefix is the label, and the prefix of the annotations (DPUCluster and DPUFlavor), by which
	// DPF's provisioning finds the ConfigMap with a template of bf.cfg.
	bfcfgTemplatePrefix = "provisioning.dpu.nvidia.com/bfcfg-template"
	// templateKey is the key of the template in that ConfigMap.
	templateKey             = "BF_CFG_TEMPLATE"
	ignitionConfigMapFormat = "bfcfg-%s.cfg"
	// annotationInputs contains the digest of the inputs from which the template was built.
	annotationInputs = "dpf.hcp.bridge.com/ignition-inputs"
	// targetKey and liveKey are the keys of the user's own ignitions in the ConfigMap that the bridge names.
	targetKey = "target.ign"
	liveKey   = "live.ign"
)

// ignitionConfigMapName returns the name of the ConfigMap that DPUs of a DPUCluster boot with.
func ignitionConfigMapName(dpuCluster string) string {
	return fmt.Sprintf(ignitionConfigMapFormat, dpuCluster)
}

// hasIgnition returns whether DPUs are, or were, installed with the bridge's template.
func hasIgnition(s *scope) bool {
	return s.bridge.Spec.DPUIgnition != nil || s.bridge.Status.IgnitionConfigMapRef != nil
}

// reconcileIgnition creates and updates the template that DPF boots DPUs with. It fetches the ignition
// from HyperShift's server only if an input of the template has changed. HyperShift replaces the token
// in the user data several times a day. A new token is a changed input, so the whole template is built
// again.
func reconcileIgnition(ctx context.Context, s *scope) step.Result {
	if s.bridge.Spec.DPUIgnition == nil {
		return deleteIgnitionTemplate(ctx, s)
	}

	inputs, userData, result := s.readIgnitionInputs(ctx)
	if !result.IsDone() {
		return result
	}

	desired := s.newTemplateConfigMap()
	digest := digestInputs(inputs, userData)

	existing := &corev1.ConfigMap{}

	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(desired), existing)
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("get ConfigMap %s: %w", client.ObjectKeyFromObject(desired), err))
	}

	exists := err == nil
	if exists && !s.isOwn(existing) {
		return step.Stall(v1alpha1.ReasonInUse, fmt.Sprintf(
			"ConfigMap %s exists and does not belong to this bridge: delete it", client.ObjectKeyFromObject(desired)))
	}

	if exists && isRestored(existing, s.bridge) {
		if err := s.takeOver(ctx, existing, desired); err != nil {
			return step.Fail(err)
		}
	}

	done := step.Done().WithReason(v1alpha1.ReasonIgnitionGenerated,
		fmt.Sprintf("DPUs boot with ConfigMap %s", client.ObjectKeyFromObject(desired)))

	s.bridge.Status.IgnitionConfigMapRef = &v1alpha1.LocalObjectReference{Name: desired.Name}

	if exists && isTemplateCurrent(existing, digest) {
		return done
	}

	text, result := s.buildTemplate(ctx, inputs, userData)
	if !result.IsDone() {
		return result
	}

	desired.Annotations[annotationInputs] = digest
	desired.Data = map[string]string{templateKey: text}

	if err := s.applyTemplate(ctx, existing, desired); err != nil {
		return step.FromError(err, resyncInterval)
	}

	return done
}

// isTemplateCurrent returns whether a ConfigMap holds the template that was built from the inputs with this
// digest, and DPF can find it.
func isTemplateCurrent(existing *corev1.ConfigMap, digest string) bool {
	return existing.Annotations[annotationInputs] == digest &&
		existing.Data[templateKey] != "" && existing.Labels[bfcfgTemplatePrefix] == "true"
}

// buildTemplate fetches the worker's ignition from the server that the user data names, and builds the
// template.
func (s *scope) buildTemplate(ctx context.Context, inputs ignition.Inputs, userData []byte) (string, step.Result) {
	source, err := ignition.ParseUserData(userData)
	if err == nil {
		inputs.Worker, err = s.Ignition.Fetch(ctx, source)
	}

	if err != nil {
		return "", step.Wait(pollInterval, v1alpha1.ReasonIgnitionUnreachable, err.Error())
	}

	text, err := ignition.BuildTemplate(inputs)
	if err != nil {
		return "", step.Stall(v1alpha1.ReasonIgnitionInvalid, err.Error())
	}

	return text, step.Done()
}

// readIgnitionInputs reads the inputs of the template and the user data, which names the server of the
// worker's ignition.
func (s *scope) readIgnitionInputs(ctx context.Context) (inputs ignition.Inputs, userData []byte, result step.Result) {
	spec, key := s.bridge.Spec.DPUIgnition, dpuClusterKey(s.bridge)
	inputs.MachineOS = spec.MachineOSURL

	flavor, err := s.getObject(ctx, s.Cache, hypershift.DPUFlavorKind(),
		client.ObjectKey{Namespace: key.Namespace, Name: spec.FlavorName})
	if err != nil {
		return inputs, nil, step.Fail(err)
	}

	if flavor == nil {
		return inputs, nil, step.Wait(resyncInterval, v1alpha1.ReasonNotFound,
			fmt.Sprintf("DPUFlavor %s/%s does not exist: create it", key.Namespace, spec.FlavorName))
	}

	inputs.Flavor = map[string]any{
		"apiVersion": flavor.GetAPIVersion(), "kind": flavor.GetKind(), "spec": flavor.Object["spec"],
		"metadata": map[string]any{"name": flavor.GetName(), "namespace": flavor.GetNamespace()},
	}

	if ref := spec.ConfigMapRef; ref != nil {
		var configMap corev1.ConfigMap

		err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: s.bridge.Namespace, Name: ref.Name}, &configMap)
		if apierrors.IsNotFound(err) {
			return inputs, nil, step.Wait(pollInterval, v1alpha1.ReasonNotFound,
				fmt.Sprintf("ConfigMap %s/%s does not exist: create it", s.bridge.Namespace, ref.Name))
		}

		if err != nil {
			return inputs, nil, step.Fail(fmt.Errorf("get ConfigMap %s: %w", ref.Name, err))
		}

		inputs.Target, inputs.Live = []byte(configMap.Data[targetKey]), []byte(configMap.Data[liveKey])
	}

	userData, result = s.readUserData(ctx)

	return inputs, userData, result
}

// readUserData reads the user data that HyperShift creates for the NodePool.
func (s *scope) readUserData(ctx context.Context) ([]byte, step.Result) {
	pool, err := s.getObject(ctx, s.Cache, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
	if err != nil {
		return nil, step.Fail(err)
	}

	if pool == nil || hypershift.UserDataSecretName(pool) == "" {
		return nil, step.Wait(resyncInterval, v1alpha1.ReasonWaitingForIgnition,
			"HyperShift has not created the NodePool's user data yet")
	}

	key := client.ObjectKey{
		Namespace: hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name), Name: hypershift.UserDataSecretName(pool),
	}

	secret, err := credential.ReadSecret(ctx, s.APIReader, key, hypershift.UserDataKey)
	if credential.IsMissing(err) {
		return nil, step.Wait(pollInterval, v1alpha1.ReasonWaitingForIgnition, fmt.Sprintf("Secret %s has no user data yet", key))
	}

	if err != nil {
		return nil, step.Fail(err)
	}

	return secret.Data[hypershift.UserDataKey], step.Done()
}

// newTemplateConfigMap returns the bridge's ConfigMap without data.
func (s *scope) newTemplateConfigMap() *corev1.ConfigMap {
	key := dpuClusterKey(s.bridge)
	labels := hypershift.BridgeLabels(s.bridge)
	labels[bfcfgTemplatePrefix] = "true"

	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: ignitionConfigMapName(key.Name), Labels: labels,
			Annotations: map[string]string{
				bfcfgTemplatePrefix + "-cluster-name": key.Name, bfcfgTemplatePrefix + "-cluster-namespace": key.Namespace,
				bfcfgTemplatePrefix + "-dpuflavor-name":      s.bridge.Spec.DPUIgnition.FlavorName,
				bfcfgTemplatePrefix + "-dpuflavor-namespace": key.Namespace,
			},
		},
	}
}

// applyTemplate creates or updates the ConfigMap.
func (s *scope) applyTemplate(ctx context.Context, existing, desired *corev1.ConfigMap) error {
	if existing.UID == "" {
		if err := s.Client.Create(ctx, desired, client.FieldOwner(fieldOwner)); err != nil {
			return s.newWriteError(err, "create", desired, v1alpha1.ReasonIgnitionInvalid)
		}

		return nil
	}

	if existing.Labels == nil {
		existing.Labels = map[string]string{}
	}

	if existing.Annotations == nil {
		existing.Annotations = map[string]string{}
	}

	maps.Copy(existing.Labels, desired.Labels)
	maps.Copy(existing.Annotations, desired.Annotations)
	existing.Data, existing.BinaryData = desired.Data, nil
	existing.TypeMeta = desired.TypeMeta

	if err := s.Client.Update(ctx, existing, client.FieldOwner(fieldOwner)); err != nil {
		return s.newWriteError(err, "update", existing, v1alpha1.ReasonIgnitionInvalid)
	}

	return nil
}

// digestInputs returns a digest of everything that determines the content of the template.
func digestInputs(in ignition.Inputs, userData []byte) string {
	text, err := json.Marshal([]any{in.Flavor, in.MachineOS, in.Target, in.Live, userData})
	if err != nil {
		return "" // cannot happen: everything was decoded from JSON
	}

	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:])
}

// deleteIgnitionTemplate deletes the template if it belongs to the bridge.
func deleteIgnitionTemplate(ctx context.Context, s *scope) step.Result {
	cluster := dpuClusterKey(s.bridge)
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: ignitionConfigMapName(cluster.Name)}

	var existing corev1.ConfigMap

	err := s.APIReader.Get(ctx, key, &existing)
	if err == nil && s.isOwn(&existing) {
		err = s.Client.Delete(ctx, &existing, client.Preconditions{UID: &existing.UID})
	}

	if client.IgnoreNotFound(err) != nil {
		return step.Fail(errclass.New(errclass.Transient, reasonDeleting, "delete ConfigMap %s: %w", key, err))
	}

	s.bridge.Status.IgnitionConfigMapRef = nil

	return step.Done()
}
