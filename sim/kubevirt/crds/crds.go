// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// Version is the version of KubeVirt's module with the schemas.
	Version = "v1.9.0"

	schemaFile = "pkg/virt-operator/resource/generate/components/validations_generated.go"

	group    = "kubevirt.io"
	fileMode = 0o600

	pollInterval = 50 * time.Millisecond
	waitTimeout  = time.Minute
)

// kind holds the properties of a kind that KubeVirt's crds.go defines in addition to the schema.
type kind struct {
	name, plural string
	short        []string
	// hasStatus enables the status subresource. VirtualMachineInstance has none.
	hasStatus bool
}

func kinds() []kind {
	return []kind{
		{"VirtualMachine", "virtualmachines", []string{"vm", "vms"}, true},
		{"VirtualMachineInstance", "virtualmachineinstances", []string{"vmi", "vmis"}, false},
		{"VirtualMachineInstanceMigration", "virtualmachineinstancemigrations", []string{"vmim", "vmims"}, true},
		{"KubeVirt", "kubevirts", []string{"kv", "kvs"}, true},
	}
}

func (k kind) singular() string { return strings.ToLower(k.name) }

// Install installs the CRDs on the API server. It returns when the API server has served all kinds for a
// second without interruption, because a new kind can become unavailable once more for a short time.
func Install(ctx context.Context, config *rest.Config) error {
	dir, err := os.MkdirTemp("", "hyperfleet-kubevirt-crds-")
	if err != nil {
		return fmt.Errorf("install KubeVirt's CRDs: %w", err)
	}

	defer func() { _ = os.RemoveAll(dir) }()

	if err := WriteCRDs(ctx, dir); err != nil {
		return err
	}

	if err := kubeproc.Apply(ctx, config, dir); err != nil {
		return err
	}

	if err := waitUntilServed(ctx, config); err != nil {
		return fmt.Errorf("wait for KubeVirt's CRDs: %w", err)
	}

	return nil
}

// waitUntilServed waits until the API server has served all kinds for a second without interruption.
func waitUntilServed(ctx context.Context, config *rest.Config) error {
	reader, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}

	served := 0

	return wait.PollUntilContextTimeout(ctx, pollInterval, waitTimeout, true, func(ctx context.Context) (bool, error) {
		served++

		for _, k := range kinds() {
			resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: k.plural}
			if _, err := reader.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
				served = 0
			}
		}

		return served > int(time.Second/pollInterval), nil
	})
}

// WriteCRDs writes each CRD to a file in the directory.
func WriteCRDs(ctx context.Context, dir string) error {
	schemas, err := ReadSchemas(ctx)
	if err != nil {
		return err
	}

	for _, k := range kinds() {
		text, ok := schemas[k.singular()]
		if !ok {
			return fmt.Errorf("read KubeVirt's schemas: version %s has no schema of %s", Version, k.singular())
		}

		definition, err := k.encodeCRD(text)
		if err != nil {
			return err
		}

		if err := os.WriteFile(filepath.Join(dir, k.plural+".json"), definition, fileMode); err != nil {
			return fmt.Errorf("write CRD of %s: %w", k.name, err)
		}
	}

	return nil
}

// ReadSchemas returns KubeVirt's schemas in YAML by the singular names of their kinds. It reads them from
// KubeVirt's Go module.
func ReadSchemas(ctx context.Context) (map[string]string, error) {
	dir, err := kubevirtModule().Download(ctx)
	if err != nil {
		return nil, err
	}

	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, schemaFile), nil, 0)
	if err != nil {
		return nil, fmt.Errorf("parse KubeVirt's schemas: %w", err)
	}

	schemas := map[string]string{}

	ast.Inspect(parsed, func(node ast.Node) bool {
		pair, ok := node.(*ast.KeyValueExpr)
		if !ok {
			return true
		}

		key, keyOK := unquoteLiteral(pair.Key)
		if value, ok := unquoteLiteral(pair.Value); ok && keyOK {
			schemas[key] = value
		}

		return true
	})

	return schemas, nil
}

// unquoteLiteral returns the value of a string literal, and false for any other expression.
func unquoteLiteral(expr ast.Expr) (string, bool) {
	literal, ok := expr.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}

	value, err := strconv.Unquote(literal.Value)

	return value, err == nil
}

// kubevirtModule returns KubeVirt's Go module.
func kubevirtModule() kubeproc.Module {
	return kubeproc.Module{
		Path: "kubevirt.io/kubevirt", Version: Version, Sum: "h1:eauQfI39dRALNciMIQtR7UsbTUjUft5V6IBO57Icl/k=",
	}
}

// encodeCRD returns the kind's CustomResourceDefinition in JSON.
func (k kind) encodeCRD(text string) ([]byte, error) {
	var validation apiextensionsv1.CustomResourceValidation
	if err := yaml.Unmarshal([]byte(text), &validation); err != nil {
		return nil, fmt.Errorf("parse schema of %s: %w", k.name, err)
	}

	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true, Schema: &validation,
	}
	if k.hasStatus {
		version.Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}

	deprecated := *version.DeepCopy()
	deprecated.Name, deprecated.Storage, deprecated.Deprecated = "v1alpha3", false, true

	raw, err := json.Marshal(&apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: k.plural + "." + group, Labels: map[string]string{group: ""}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: k.name, Plural: k.plural, Singular: k.singular(), ShortNames: k.short, Categories: []string{"all"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version, deprecated},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode CRD of %s: %w", k.name, err)
	}

	return raw, nil
}
