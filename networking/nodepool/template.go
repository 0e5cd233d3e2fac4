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

// ensureTemplate creates the template of new machines, or restores its content. The name of the template
// has a digest of its content.
func ensureTemplate(ctx context.Context, s *scope) step.Result {
	spec, err := kubevirt.NewMachineSpec(s.pool)
	if err != nil {
		return step.Stall("InvalidNetworkData", err.Error())
	}

	text, err := json.Marshal(spec)
	if err != nil {
		return step.Fail(fmt.Errorf("encode template: %w", err))
	}

	sum := sha256.Sum256(text)
	s.spec, s.templateName = spec, s.pool.Name+"-"+hex.EncodeToString(sum[:4])

	var found v1alpha1.KubevirtMachineTemplate

	err = s.Client.Get(ctx, client.ObjectKey{Namespace: s.pool.Namespace, Name: s.templateName}, &found)

	isOwned := metav1.IsControlledBy(&found, s.pool)
	isRestored := !isOwned && kubevirt.HasNoOrEarlierOwner(&found, s.pool, kindNodePool) &&
		found.Labels[v1alpha1.LabelNodePool] == s.pool.Name

	switch {
	case apierrors.IsNotFound(err):
		err = s.createTemplate(ctx)
	case err == nil && isRestored:
		before := found.DeepCopy()
		kubevirt.TakeOver(&found, s.pool, kindNodePool)
		err = errors.Join(s.Client.Patch(ctx, &found, client.MergeFrom(before)), s.restoreTemplate(ctx, &found))
	case err == nil && !isOwned:
		return step.Stall("TemplateNotOurs", fmt.Sprintf(
			"the KubevirtMachineTemplate %q does not belong to this pool: delete it", s.templateName))
	case err == nil:
		err = s.restoreTemplate(ctx, &found)
	}

	if err != nil {
		return step.Fail(fmt.Errorf("ensure template %s: %w", s.templateName, err))
	}

	s.pool.Status.MachineTemplate = s.templateName

	return step.Done()
}

func (s *scope) createTemplate(ctx context.Context) error {
	template := &v1alpha1.KubevirtMachineTemplate{
		ObjectMeta: s.newObjectMeta(s.templateName),
		Spec:       v1alpha1.KubevirtMachineTemplateSpec{Template: v1alpha1.KubevirtMachineTemplateResource{Spec: s.spec}},
	}

	if err := client.IgnoreAlreadyExists(s.Client.Create(ctx, template)); err != nil {
		return fmt.Errorf("create template: %w", err)
	}

	return nil
}

// restoreTemplate reverts a change of a template's content, because the name of the template must match its
// content.
func (s *scope) restoreTemplate(ctx context.Context, found *v1alpha1.KubevirtMachineTemplate) error {
	raw := found.Spec.Template.Spec.VirtualMachineTemplate.Raw

	// A template that is too large to parse was certainly changed.
	if kubevirt.CheckTemplate(raw) == nil {
		var current, desired any

		err := errors.Join(json.Unmarshal(raw, &current), json.Unmarshal(s.spec.VirtualMachineTemplate.Raw, &desired))
		if err == nil && equality.Semantic.DeepEqual(current, desired) {
			return nil
		}
	}

	change, err := json.Marshal([]map[string]any{{
		"op": "replace", "path": "/spec/template/spec/virtualMachineTemplate", "value": &s.spec.VirtualMachineTemplate,
	}})
	if err != nil {
		return fmt.Errorf("encode virtualMachineTemplate: %w", err)
	}

	if err := s.Client.Patch(ctx, found, client.RawPatch(types.JSONPatchType, change)); err != nil {
		return fmt.Errorf("restore virtualMachineTemplate: %w", err)
	}

	return nil
}

// newObjectMeta returns the metadata of an object that the pool owns.
func (s *scope) newObjectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.pool.Namespace, Name: name,
		Labels: map[string]string{
			v1alpha1.LabelNodePool: s.pool.Name, v1alpha1.LabelCluster: kubevirt.ClusterName(s.pool),
		},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(s.pool, v1alpha1.GroupVersion.WithKind(kindNodePool)),
		},
	}
}

// deleteUnusedTemplates deletes the pool's templates that no machine uses any longer.
func (s *scope) deleteUnusedTemplates(ctx context.Context, allMachines []v1alpha1.KubevirtMachine) error {
	used := map[string]bool{s.templateName: true}
	for i := range allMachines {
		used[allMachines[i].Annotations[v1alpha1.AnnotationMachineTemplate]] = true
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
