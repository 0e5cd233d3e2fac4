// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// templateReady makes the template of new machines, named after its content.
func templateReady(ctx context.Context, s *scope) step.Result {
	spec, err := kubevirt.MachineSpec(s.pool)
	if err != nil {
		return step.Stall("InvalidNetworkData", err.Error())
	}

	text, err := json.Marshal(spec)
	if err != nil {
		return step.Fail(fmt.Errorf("write template: %w", err))
	}

	sum := sha256.Sum256(text)
	s.spec, s.template = spec, s.pool.Name+"-"+hex.EncodeToString(sum[:4])

	var found v1alpha1.KubevirtMachineTemplate

	err = s.Client.Get(ctx, client.ObjectKey{Namespace: s.pool.Namespace, Name: s.template}, &found)

	switch {
	case apierrors.IsNotFound(err):
		err = s.makeTemplate(ctx)
	case err == nil && !metav1.IsControlledBy(&found, s.pool):
		return step.Stall("TemplateNotOurs", fmt.Sprintf(
			"there is a KubevirtMachineTemplate %q that does not belong to this pool: delete it", s.template))
	case err == nil:
		err = s.restoreTemplate(ctx, &found)
	}

	if err != nil {
		return step.Fail(fmt.Errorf("keep template %s: %w", s.template, err))
	}

	s.pool.Status.MachineTemplate = s.template

	return step.Done()
}

func (s *scope) makeTemplate(ctx context.Context) error {
	template := &v1alpha1.KubevirtMachineTemplate{
		ObjectMeta: s.meta(s.template),
		Spec:       v1alpha1.KubevirtMachineTemplateSpec{Template: v1alpha1.KubevirtMachineTemplateResource{Spec: s.spec}},
	}

	if err := client.IgnoreAlreadyExists(s.Client.Create(ctx, template)); err != nil {
		return fmt.Errorf("create it: %w", err)
	}

	return nil
}

// restoreTemplate undoes what somebody changed in a template: its name says its content.
func (s *scope) restoreTemplate(ctx context.Context, found *v1alpha1.KubevirtMachineTemplate) error {
	has := found.Spec.Template.Spec.VirtualMachineTemplate.Raw

	// What is too large to be read is changed for sure.
	if kubevirt.CheckTemplate(has) == nil {
		var have, want any

		err := errors.Join(json.Unmarshal(has, &have), json.Unmarshal(s.spec.VirtualMachineTemplate.Raw, &want))
		if err == nil && equality.Semantic.DeepEqual(have, want) {
			return nil
		}
	}

	change, err := json.Marshal([]map[string]any{{
		"op": "replace", "path": "/spec/template/spec/virtualMachineTemplate", "value": &s.spec.VirtualMachineTemplate,
	}})
	if err != nil {
		return fmt.Errorf("write virtualMachineTemplate: %w", err)
	}

	if err := s.Client.Patch(ctx, found, client.RawPatch(types.JSONPatchType, change)); err != nil {
		return fmt.Errorf("fix it: %w", err)
	}

	return nil
}

// meta is the metadata of what belongs to the pool.
func (s *scope) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.pool.Namespace, Name: name,
		Labels: map[string]string{
			v1alpha1.LabelNodePool: s.pool.Name, v1alpha1.LabelCluster: kubevirt.ClusterName(s.pool),
		},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(s.pool, v1alpha1.GroupVersion.WithKind("KubevirtNodePool")),
		},
	}
}

// dropTemplates removes templates that no machine is made from any more.
func (s *scope) dropTemplates(ctx context.Context, all []v1alpha1.KubevirtMachine) error {
	used := map[string]bool{s.template: true}
	for i := range all {
		used[all[i].Annotations[v1alpha1.AnnotationMachineTemplate]] = true
	}

	var templates v1alpha1.KubevirtMachineTemplateList

	err := s.Client.List(ctx, &templates, client.InNamespace(s.pool.Namespace),
		client.MatchingLabels{v1alpha1.LabelNodePool: s.pool.Name})
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}

	for i := range templates.Items {
		template := &templates.Items[i]
		if used[template.Name] || !metav1.IsControlledBy(template, s.pool) || template.DeletionTimestamp != nil {
			continue
		}

		if err := client.IgnoreNotFound(s.Client.Delete(ctx, template)); err != nil {
			return fmt.Errorf("delete template %s: %w", template.Name, err)
		}
	}

	return nil
}
