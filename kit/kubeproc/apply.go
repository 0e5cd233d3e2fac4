// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	fieldOwner       = "hyperfleet-local"
	establishTimeout = 30 * time.Second
	establishPoll    = 50 * time.Millisecond
	yamlBuffer       = 4096
)

// Apply applies all objects in the YAML and JSON files at the paths with server-side apply. A path
// is a file or a folder. Folders are read recursively, and files named kustomization.* are skipped.
// Apply applies CRDs before all other objects and waits until the API server serves them.
func Apply(ctx context.Context, config *rest.Config, paths ...string) error {
	objects, err := ReadObjects(paths...)
	if err != nil {
		return err
	}

	c, err := client.New(config, client.Options{Scheme: runtime.NewScheme()})
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}

	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })

	crds := 0
	for crds < len(objects) && rank(objects[crds]) == 0 {
		crds++
	}

	if err := applyAll(ctx, c, objects[:crds]); err != nil {
		return err
	}

	for _, crd := range objects[:crds] {
		if err := waitUntilServed(ctx, config, c, crd); err != nil {
			return err
		}
	}

	return applyAll(ctx, c, objects[crds:])
}

// rank returns the position of an object's kind in the order in which kinds must be applied.
func rank(obj *unstructured.Unstructured) int {
	order := []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role"}
	if i := slices.Index(order, obj.GetKind()); i >= 0 {
		return i
	}

	return len(order)
}

func applyAll(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	for _, obj := range objects {
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(fieldOwner), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", obj.GetKind(), client.ObjectKeyFromObject(obj), err)
		}
	}

	return nil
}

// waitUntilServed waits until the API server serves the CRD and discovery lists its kinds.
// Discovery is updated shortly after the condition Established.
func waitUntilServed(ctx context.Context, config *rest.Config, c client.Client, crd *unstructured.Unstructured) error {
	var lastState string

	err := wait.PollUntilContextTimeout(ctx, establishPoll, establishTimeout, true, func(ctx context.Context) (bool, error) {
		got := &unstructured.Unstructured{}
		got.SetGroupVersionKind(crd.GroupVersionKind())

		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), got); err != nil {
			return false, err
		}

		typed := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, typed); err != nil {
			return false, err
		}

		lastState = "it has no conditions yet"

		for _, condition := range typed.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				lastState = "discovery does not list its kinds yet"

				return isDiscovered(config, typed)
			}

			lastState = fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Message)
		}

		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for CRD %s: %w: %s", crd.GetName(), err, lastState)
	}

	return nil
}

// isDiscovered returns whether a new client without cached discovery finds the CRD's kinds.
func isDiscovered(config *rest.Config, crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return false, err
	}

	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		return false, err
	}

	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}

		_, err := mapper.RESTMapping(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, version.Name)
		if meta.IsNoMatchError(err) {
			return false, nil
		}

		if err != nil {
			return false, err
		}
	}

	return true, nil
}

// ReadObjects reads the objects in the YAML and JSON files at the paths. The objects are in the
// order of the paths, and of the file names in a folder.
func ReadObjects(paths ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured

	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}

			if entry.IsDir() || !isManifest(path) {
				return nil
			}

			read, err := readFile(path)
			objects = append(objects, read...)

			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
	}

	return objects, nil
}

func isManifest(path string) bool {
	base := filepath.Base(path)

	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(base)) && !strings.HasPrefix(base, "kustomization.")
}

// readFile reads all objects of a YAML or JSON file and skips empty documents.
func readFile(path string) ([]*unstructured.Unstructured, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	var objects []*unstructured.Unstructured

	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), yamlBuffer)

	for {
		obj := &unstructured.Unstructured{}

		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}

		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", path, err)
		}

		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}
