// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
)

// ListNames returns the names of all Secrets that a spec refers to and that its object may use. An object without a
// namespace reads as the operator.
func (s *Secrets) ListNames(ctx context.Context, spec any, namespace string) []types.NamespacedName {
	reader := namespace
	if reader == "" {
		reader = s.OperatorNamespace
	}

	var out []types.NamespacedName

	for _, selector := range findSelectors(reflect.ValueOf(spec)) {
		name := types.NamespacedName{Namespace: selector.Namespace, Name: selector.Name}
		if name.Namespace == "" {
			name.Namespace = reader
		}

		// A tenant must not change a Secret that it may not use.
		if name.Namespace != reader {
			err := credential.CheckMetadata(ctx, s.Reader, name, selector.Key, func(secret metav1.Object) error {
				if !isNamespaceAllowed(secret, reader) {
					return errNotAllowed
				}

				return nil
			})
			if err != nil {
				continue
			}
		}

		out = append(out, name)
	}

	return out
}

// findSelectors returns all SecretKeySelectors in a value.
func findSelectors(value reflect.Value) []v1alpha1.SecretKeySelector {
	if selector, ok := value.Interface().(v1alpha1.SecretKeySelector); ok {
		return []v1alpha1.SecretKeySelector{selector}
	}

	var out []v1alpha1.SecretKeySelector

	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			out = findSelectors(value.Elem())
		}
	case reflect.Slice:
		for i := range value.Len() {
			out = append(out, findSelectors(value.Index(i))...)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			out = append(out, findSelectors(value.MapIndex(key))...)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				out = append(out, findSelectors(value.Field(i))...)
			}
		}
	default:
	}

	return out
}
