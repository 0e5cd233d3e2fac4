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

// What DPF's provisioning looks for a template of bf.cfg by: a label, the DPUCluster, the
// DPUFlavor, and the key of the text.
const (
	dpfPrefix           = "provisioning.dpu.nvidia.com/bfcfg-template"
	templateKey         = "BF_CFG_TEMPLATE"
	annotationInputs    = "dpf.hcp.bridge.com/ignition-inputs"
	targetKey           = "target.ign"
	liveKey             = "live.ign"
	ignitionTemplateFmt = "bfcfg-%s.cfg"
)

// templateName is that of the ConfigMap that DPUs of a DPUCluster boot with.
func templateName(dpuCluster string) string { return fmt.Sprintf(ignitionTemplateFmt, dpuCluster) }

// ignites says whether DPUs are, or were, installed by the bridge's template.
func ignites(s *scope) bool {
	return s.bridge.Spec.DPUIgnition != nil || s.bridge.Status.IgnitionConfigMapRef != nil
}

// ignitionConfigured keeps the template that DPF boots DPUs with. HyperShift's server is asked
// only when something that the template is made of has changed: HyperShift gives its user data
// another token several times a day, and with the token the rest is new as well.
func ignitionConfigured(ctx context.Context, s *scope) step.Result {
	if s.bridge.Spec.DPUIgnition == nil {
		return ignitionGone(ctx, s)
	}

	inputs, userData, result := s.ignitionInputs(ctx)
	if !result.IsDone() {
		return result
	}

	want := s.template()
	digest := digestOf(inputs, userData)

	have := &corev1.ConfigMap{}

	err := s.Live.Get(ctx, client.ObjectKeyFromObject(want), have)
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("get ConfigMap %s: %w", client.ObjectKeyFromObject(want), err))
	}

	if err == nil && !s.ours(have) {
		return step.Stall(v1alpha1.ReasonInUse, fmt.Sprintf(
			"ConfigMap %s is there and does not belong to this bridge: remove it", client.ObjectKeyFromObject(want)))
	}

	done := step.Done().WithReason(v1alpha1.ReasonIgnitionGenerated,
		fmt.Sprintf("DPUs boot with ConfigMap %s", client.ObjectKeyFromObject(want)))

	s.bridge.Status.IgnitionConfigMapRef = &v1alpha1.LocalObjectReference{Name: want.Name}

	if err == nil && have.Annotations[annotationInputs] == digest &&
		have.Data[templateKey] != "" && have.Labels[dpfPrefix] == "true" {
		return done
	}

	source, err := ignition.ReadUserData(userData)
	if err == nil {
		inputs.Worker, err = s.Ignition.Fetch(ctx, source)
	}

	if err != nil {
		return step.Wait(lookSoon, v1alpha1.ReasonIgnitionUnreachable, err.Error())
	}

	text, err := ignition.Template(inputs)
	if err != nil {
		return step.Stall(v1alpha1.ReasonIgnitionInvalid, err.Error())
	}

	want.Annotations[annotationInputs] = digest
	want.Data = map[string]string{templateKey: text}

	if err := s.keepTemplate(ctx, have, want); err != nil {
		return step.ForError(err, lookAgain)
	}

	return done
}

// ignitionInputs reads what a template is made of, and the user data that leads to the rest.
func (s *scope) ignitionInputs(ctx context.Context) (ignition.Inputs, []byte, step.Result) {
	wanted, key := s.bridge.Spec.DPUIgnition, dpuClusterKey(s.bridge)
	out := ignition.Inputs{MachineOS: wanted.MachineOSURL}

	flavor, err := s.read(ctx, s.Cache, hypershift.DPUFlavorKind(),
		client.ObjectKey{Namespace: key.Namespace, Name: wanted.FlavorName})
	if err != nil {
		return out, nil, step.Fail(err)
	}

	if flavor == nil {
		return out, nil, step.Wait(lookAgain, v1alpha1.ReasonNotFound,
			fmt.Sprintf("DPUFlavor %s/%s is not there: make it", key.Namespace, wanted.FlavorName))
	}

	out.Flavor = map[string]any{
		"apiVersion": flavor.GetAPIVersion(), "kind": flavor.GetKind(), "spec": flavor.Object["spec"],
		"metadata": map[string]any{"name": flavor.GetName(), "namespace": flavor.GetNamespace()},
	}

	if ref := wanted.ConfigMapRef; ref != nil {
		var more corev1.ConfigMap

		err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.bridge.Namespace, Name: ref.Name}, &more)
		if apierrors.IsNotFound(err) {
			return out, nil, step.Wait(lookSoon, v1alpha1.ReasonNotFound,
				fmt.Sprintf("ConfigMap %s/%s is not there: make it", s.bridge.Namespace, ref.Name))
		}

		if err != nil {
			return out, nil, step.Fail(fmt.Errorf("get ConfigMap %s: %w", ref.Name, err))
		}

		out.Target, out.Live = []byte(more.Data[targetKey]), []byte(more.Data[liveKey])
	}

	userData, result := s.userData(ctx)

	return out, userData, result
}

// userData reads HyperShift's user data of the NodePool.
func (s *scope) userData(ctx context.Context) ([]byte, step.Result) {
	pool, err := s.read(ctx, s.Cache, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
	if err != nil {
		return nil, step.Fail(err)
	}

	if pool == nil || hypershift.UserData(pool) == "" {
		return nil, step.Wait(lookAgain, v1alpha1.ReasonWaitingForIgnition, "HyperShift has not made the NodePool's user data yet")
	}

	key := client.ObjectKey{
		Namespace: hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name), Name: hypershift.UserData(pool),
	}

	secret, err := credential.Read(ctx, s.Live, key, hypershift.UserDataKey)
	if credential.Missing(err) {
		return nil, step.Wait(lookSoon, v1alpha1.ReasonWaitingForIgnition, fmt.Sprintf("Secret %s has no user data yet", key))
	}

	if err != nil {
		return nil, step.Fail(err)
	}

	return secret.Data[hypershift.UserDataKey], step.Done()
}

// template is the bridge's ConfigMap, without content.
func (s *scope) template() *corev1.ConfigMap {
	key := dpuClusterKey(s.bridge)
	labels := hypershift.Labels(s.bridge)
	labels[dpfPrefix] = "true"

	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: templateName(key.Name), Labels: labels,
			Annotations: map[string]string{
				dpfPrefix + "-cluster-name": key.Name, dpfPrefix + "-cluster-namespace": key.Namespace,
				dpfPrefix + "-dpuflavor-name":      s.bridge.Spec.DPUIgnition.FlavorName,
				dpfPrefix + "-dpuflavor-namespace": key.Namespace,
			},
		},
	}
}

// keepTemplate makes the ConfigMap, or fixes it.
func (s *scope) keepTemplate(ctx context.Context, have, want *corev1.ConfigMap) error {
	if have.UID == "" {
		if err := s.Client.Create(ctx, want, client.FieldOwner(fieldOwner)); err != nil {
			return s.refused(err, "create", want, v1alpha1.ReasonIgnitionInvalid)
		}

		return nil
	}

	if have.Labels == nil {
		have.Labels = map[string]string{}
	}

	if have.Annotations == nil {
		have.Annotations = map[string]string{}
	}

	maps.Copy(have.Labels, want.Labels)
	maps.Copy(have.Annotations, want.Annotations)
	have.Data, have.BinaryData = want.Data, nil
	have.TypeMeta = want.TypeMeta

	if err := s.Client.Update(ctx, have, client.FieldOwner(fieldOwner)); err != nil {
		return s.refused(err, "update", have, v1alpha1.ReasonIgnitionInvalid)
	}

	return nil
}

// digestOf says whether a template would be another one.
func digestOf(in ignition.Inputs, userData []byte) string {
	text, err := json.Marshal([]any{in.Flavor, in.MachineOS, in.Target, in.Live, userData})
	if err != nil {
		return "" // what was read as JSON can be written
	}

	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:])
}

// ignitionGone removes the template, where it is the bridge's.
func ignitionGone(ctx context.Context, s *scope) step.Result {
	cluster := dpuClusterKey(s.bridge)
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: templateName(cluster.Name)}

	var have corev1.ConfigMap

	err := s.Live.Get(ctx, key, &have)
	if err == nil && s.ours(&have) {
		err = s.Client.Delete(ctx, &have, client.Preconditions{UID: &have.UID})
	}

	if client.IgnoreNotFound(err) != nil {
		return step.Fail(errclass.New(errclass.Transient, reasonDeleting, "delete ConfigMap %s: %w", key, err))
	}

	s.bridge.Status.IgnitionConfigMapRef = nil

	return step.Done()
}
