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

	"github.com/hyperfleet/hyperfleet/kit/gomod"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// Version of KubeVirt whose schemas these are.
	Version = "v1.9.0"

	file = "pkg/virt-operator/resource/generate/components/validations_generated.go"

	group    = "kubevirt.io"
	fileMode = 0o600

	lookAt   = 50 * time.Millisecond
	patience = time.Minute
)

// kind is what crds.go says of a kind beside its schema.
type kind struct {
	name, plural string
	short        []string
	// status says that the kind has the status subresource. A VirtualMachineInstance has
	// none.
	status bool
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

// Install gives the API server the kinds, and returns when it has served them for a second: a new
// kind may be away for a moment once more.
func Install(ctx context.Context, config *rest.Config) error {
	dir, err := os.MkdirTemp("", "hyperfleet-kubevirt-crds-")
	if err != nil {
		return fmt.Errorf("install KubeVirt's kinds: %w", err)
	}

	defer func() { _ = os.RemoveAll(dir) }()

	if err := Write(ctx, dir); err != nil {
		return err
	}

	if err := kubeproc.Apply(ctx, config, dir); err != nil {
		return err
	}

	if err := settled(ctx, config); err != nil {
		return fmt.Errorf("wait for KubeVirt's kinds: %w", err)
	}

	return nil
}

// settled waits until all kinds are served for a second without a break.
func settled(ctx context.Context, config *rest.Config) error {
	reader, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}

	served := 0

	return wait.PollUntilContextTimeout(ctx, lookAt, patience, true, func(ctx context.Context) (bool, error) {
		served++

		for _, k := range kinds() {
			resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: k.plural}
			if _, err := reader.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
				served = 0
			}
		}

		return served > int(time.Second/lookAt), nil
	})
}

// Write writes the kinds' definitions into the folder, a file for each.
func Write(ctx context.Context, dir string) error {
	schemas, err := Schemas(ctx)
	if err != nil {
		return err
	}

	for _, k := range kinds() {
		text, ok := schemas[k.singular()]
		if !ok {
			return fmt.Errorf("read KubeVirt's schemas: %s has none for %s", Version, k.singular())
		}

		definition, err := k.definition(text)
		if err != nil {
			return err
		}

		if err := os.WriteFile(filepath.Join(dir, k.plural+".json"), definition, fileMode); err != nil {
			return fmt.Errorf("write definition of %s: %w", k.name, err)
		}
	}

	return nil
}

// Schemas reads KubeVirt's schemas out of its module, by singular name.
func Schemas(ctx context.Context) (map[string]string, error) {
	dir, err := module().Dir(ctx)
	if err != nil {
		return nil, err
	}

	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, 0)
	if err != nil {
		return nil, fmt.Errorf("parse KubeVirt's schemas: %w", err)
	}

	schemas := map[string]string{}

	ast.Inspect(parsed, func(node ast.Node) bool {
		pair, ok := node.(*ast.KeyValueExpr)
		if !ok {
			return true
		}

		key, keyOK := text(pair.Key)
		if value, ok := text(pair.Value); ok && keyOK {
			schemas[key] = value
		}

		return true
	})

	return schemas, nil
}

// text is a string literal's value.
func text(expr ast.Expr) (string, bool) {
	literal, ok := expr.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}

	value, err := strconv.Unquote(literal.Value)

	return value, err == nil
}

// module is KubeVirt's.
func module() gomod.Module {
	return gomod.Module{
		Path: "kubevirt.io/kubevirt", Version: Version, Sum: "h1:eauQfI39dRALNciMIQtR7UsbTUjUft5V6IBO57Icl/k=",
	}
}

// definition is the kind's CustomResourceDefinition in JSON.
func (k kind) definition(text string) ([]byte, error) {
	var validation apiextensionsv1.CustomResourceValidation
	if err := yaml.Unmarshal([]byte(text), &validation); err != nil {
		return nil, fmt.Errorf("parse schema of %s: %w", k.name, err)
	}

	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true, Schema: &validation,
	}
	if k.status {
		version.Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}

	old := *version.DeepCopy()
	old.Name, old.Storage, old.Deprecated = "v1alpha3", false, true

	raw, err := json.Marshal(&apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: k.plural + "." + group, Labels: map[string]string{group: ""}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: k.name, Plural: k.plural, Singular: k.singular(), ShortNames: k.short, Categories: []string{"all"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version, old},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write definition of %s: %w", k.name, err)
	}

	return raw, nil
}
