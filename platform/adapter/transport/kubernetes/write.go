// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Create makes the object.
func (c *Client) Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ref := transport.RefTo(object)

	ctx, cancel := c.bound(ctx)
	defer cancel()

	calls, err := c.writable("create", ref)
	if err != nil {
		return nil, err
	}

	made, err := calls.Create(ctx, object, metav1.CreateOptions{FieldManager: c.manager})
	if err != nil {
		return nil, transport.Error("create", ref, err)
	}

	return made, nil
}

// Apply is a server-side apply. Fields that other managers have set to other values are
// taken over, and that is told: the object is the adapter's, and it could not wait for
// somebody to resolve the conflict.
func (c *Client) Apply(ctx context.Context, live, object *unstructured.Unstructured) (transport.Applied, error) {
	ref := transport.RefTo(live)
	// The request is for the version that the manifest is written in.
	ref.GVK = object.GroupVersionKind()

	ctx, cancel := c.bound(ctx)
	defer cancel()

	calls, err := c.writable("apply", ref)
	if err != nil {
		return transport.Applied{}, err
	}

	live, err = c.adopt(ctx, calls, live)
	if err != nil {
		return transport.Applied{}, transport.Error("apply", ref, err)
	}

	object = object.DeepCopy()
	object.SetManagedFields(nil)
	object.SetUID(live.GetUID())
	object.SetResourceVersion(live.GetResourceVersion())

	options := metav1.ApplyOptions{FieldManager: c.manager}

	applied, err := calls.Apply(ctx, ref.Name, object, options)
	if err == nil {
		return transport.Applied{Object: applied}, nil
	}

	fields, conflict := c.takenOver(err)
	if !conflict {
		return transport.Applied{}, transport.Error("apply", ref, err)
	}

	options.Force = true
	if applied, err = calls.Apply(ctx, ref.Name, object, options); err != nil {
		return transport.Applied{}, transport.Error("apply", ref, err)
	}

	return transport.Applied{Object: applied, TakenOver: fields}, nil
}

// adopt makes the fields that Create has set those of Apply, once: an apply removes only
// what an apply has set (Kubernetes, "Server-Side Apply", section "Upgrading from
// client-side apply to server-side apply").
func (c *Client) adopt(
	ctx context.Context, calls dynamic.ResourceInterface, live *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(c.manager), c.manager)
	if err != nil {
		return nil, fmt.Errorf("read managed fields: %w", err)
	}

	if patch == nil {
		return live, nil
	}

	options := metav1.PatchOptions{FieldManager: c.manager}

	return calls.Patch(ctx, live.GetName(), types.JSONPatchType, patch, options)
}

// takenOver tells a conflict over fields from one over the object's state, and which
// fields it is about. Those that a patch of ours had set are not worth telling.
func (c *Client) takenOver(err error) (fields string, conflict bool) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}

	var told []string

	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			return "", false
		}

		conflict = true

		// The manager is told as: conflict with "NAME" using v1
		if !strings.Contains(cause.Message, `"`+c.manager+patchSuffix+`"`) {
			told = append(told, fmt.Sprintf("%s (%s)", cause.Field, cause.Message))
		}
	}

	return strings.Join(told, ", "), conflict
}

// Patch applies a merge patch.
func (c *Client) Patch(ctx context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	if err := unstructured.SetNestedField(document, ref.ResourceVersion, "metadata", "resourceVersion"); err != nil {
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid, "patch %s: %w", ref, err)
	}

	body, err := json.Marshal(document)
	if err != nil {
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid, "patch %s: %w", ref, err)
	}

	ctx, cancel := c.bound(ctx)
	defer cancel()

	calls, err := c.writable("patch", ref)
	if err != nil {
		return nil, err
	}

	options := metav1.PatchOptions{FieldManager: c.manager + patchSuffix}

	patched, err := calls.Patch(ctx, ref.Name, types.MergePatchType, body, options)
	if err != nil {
		return nil, transport.Error("patch", ref, err)
	}

	return patched, nil
}

// Delete asks for the object's deletion.
func (c *Client) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()

	calls, err := c.writable("delete", ref)
	if err != nil {
		return err
	}

	options := metav1.DeleteOptions{
		PropagationPolicy: &propagation,
		Preconditions:     &metav1.Preconditions{UID: &ref.UID, ResourceVersion: &ref.ResourceVersion},
	}

	return transport.Error("delete", ref, calls.Delete(ctx, ref.Name, options))
}

// writable gives the calls for the object to write.
func (c *Client) writable(verb string, ref transport.Ref) (dynamic.ResourceInterface, error) {
	calls, namespaced, err := c.resource(ref.GVK, ref.Namespace)

	switch {
	case err != nil:
		return nil, transport.Error(verb, ref, err)
	case namespaced && ref.Namespace == "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind lives in namespaces, and none is named; set metadata.namespace", verb, ref)
	case !namespaced && ref.Namespace != "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind lives in no namespace; leave metadata.namespace out", verb, ref)
	}

	return calls, nil
}
