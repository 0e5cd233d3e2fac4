// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

const (
	bundleName = "hyperfleet-bundle"
	// extraManifestsName is the file with the objects that OLM does not accept in a bundle, or would
	// overwrite.
	extraManifestsName = "hyperfleet-bundle.yaml"
	channel            = "alpha"
	// suggestedNamespace is the default namespace of the operator.
	suggestedNamespace = "hyperfleet-system"
	// minKubeVersion is the first version of Kubernetes that accepts new CRDs whose rules use CEL's format
	// library.
	minKubeVersion = "1.32.0"
)

// object is a Kubernetes object.
type object map[string]any

func (o object) kind() string { return fmt.Sprint(o["kind"]) }

func (o object) name() string {
	meta, _ := o["metadata"].(map[string]any)

	return fmt.Sprint(meta["name"])
}

// field returns the value at a path, or nil if the path does not exist.
func (o object) field(path ...string) any {
	var value any = map[string]any(o)

	for _, name := range path {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}

	return value
}

// permissions are the RBAC rules of one ServiceAccount.
type permissions struct {
	ServiceAccountName string `json:"serviceAccountName"`
	Rules              any    `json:"rules"`
}

// bundleParts has the objects of the bundle by their place in it. OLM creates the ServiceAccounts, roles and
// Deployments from the ClusterServiceVersion.
type bundleParts struct {
	deployments                    []any
	permissions                    []permissions
	clusterPermissions             []permissions
	owned                          []any
	images                         []string
	manifests, extraManifests, crd []object
}

// writeBundle writes a bundle for the Operator Lifecycle Manager (OLM) in the format registry+v1. The bundle
// has the objects of deploy/base. writeBundle writes it as an OCI archive and as a compressed folder.
func (r *release) writeBundle() error {
	text, err := buildKustomization(r.source("deploy/base"))
	if err != nil {
		return err
	}

	objects, err := decodeObjects(r.setImageNames(text))
	if err != nil {
		return err
	}

	sorted, err := sortObjects(objects)
	if err != nil {
		return err
	}

	csv, err := r.clusterServiceVersion(sorted)
	if err != nil {
		return err
	}

	entries := []entry{{name: "manifests/hyperfleet.clusterserviceversion.yaml", data: csv, mode: 0o644}}

	for _, o := range append(sorted.crd, sorted.manifests...) {
		data, err := yaml.Marshal(o)
		if err != nil {
			return err
		}

		name := o.name() + "_" + strings.ToLower(o.kind()) + ".yaml"
		entries = append(entries, entry{name: "manifests/" + name, data: data, mode: 0o644})
	}

	annotations, err := yaml.Marshal(map[string]any{"annotations": bundleLabels()})
	if err != nil {
		return err
	}

	entries = append(entries, entry{name: "metadata/annotations.yaml", data: annotations, mode: 0o644})
	slices.SortFunc(entries, byName)

	var beside strings.Builder

	for _, o := range sorted.extraManifests {
		data, err := yaml.Marshal(o)
		if err != nil {
			return err
		}

		beside.WriteString("---\n" + string(data))
	}

	if err := r.write(extraManifestsName, beside.String()); err != nil {
		return err
	}

	if err := r.writeBundleImage(entries); err != nil {
		return err
	}

	for i := range entries {
		entries[i].name = "bundle/" + entries[i].name
	}

	return r.pack(bundleName+"-"+r.plainVersion()+".tgz", entries)
}

func bundleLabels() map[string]string {
	const prefix = "operators.operatorframework.io.bundle."

	return map[string]string{
		prefix + "mediatype.v1": "registry+v1", prefix + "manifests.v1": "manifests/", prefix + "metadata.v1": "metadata/",
		prefix + "package.v1": "hyperfleet", prefix + "channels.v1": channel, prefix + "channel.default.v1": channel,
	}
}

func decodeObjects(text string) ([]object, error) {
	var out []object

	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &o); err != nil {
			return nil, fmt.Errorf("decode manifests: %w", err)
		}

		if o != nil {
			out = append(out, o)
		}
	}

	return out, nil
}

// sortObjects assigns each object to its place in the bundle. It returns an error for an object of an unknown
// kind, because an OLM installation would not have this object.
func sortObjects(objects []object) (*bundleParts, error) {
	out := &bundleParts{}

	for _, o := range objects {
		switch o.kind() {
		case "CustomResourceDefinition":
			out.crd = append(out.crd, o)
			out.addOwnedKind(o)
		case "Deployment":
			out.addDeployment(o)
		case "ServiceAccount", "ClusterRoleBinding", "RoleBinding":
			// OLM creates these objects from the permissions in the ClusterServiceVersion.
			// TestBundleHasPermissionsOfManifests compares both.
		case "ClusterRole":
			out.clusterPermissions = append(out.clusterPermissions, permissions{o.name(), o["rules"]})
		case "Role":
			out.permissions = append(out.permissions, permissions{o.name(), o["rules"]})
		case "ConfigMap", "Service", "PodDisruptionBudget":
			if meta, ok := o["metadata"].(map[string]any); ok {
				delete(meta, "namespace") // OLM sets the namespace
			}

			out.manifests = append(out.manifests, o)
		case "Namespace", "NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Secret":
			// The operator fills the Secrets, and OLM would empty them at each upgrade.
			out.extraManifests = append(out.extraManifests, o)
		default:
			return nil, fmt.Errorf("bundle %s %s: unknown kind: add it in hack/release/bundle.go", o.kind(), o.name())
		}
	}

	return out, nil
}

// addOwnedKind adds the kind of a CRD to the kinds that the operator owns.
func (p *bundleParts) addOwnedKind(crd object) {
	versions, _ := crd.field("spec", "versions").([]any)
	for _, item := range versions {
		version, _ := item.(map[string]any)
		kind := fmt.Sprint(crd.field("spec", "names", "kind"))
		description := object(version).field("schema", "openAPIV3Schema", "description")
		p.owned = append(p.owned, map[string]any{
			"name": crd.name(), "version": version["name"], "kind": kind, "displayName": kind, "description": description,
		})
	}
}

// addDeployment adds a Deployment and its images. The environment variable HYPERFLEET_NAMESPACE is set to the
// namespace in which OLM creates the Deployment.
func (p *bundleParts) addDeployment(o object) {
	containers, _ := o.field("spec", "template", "spec", "containers").([]any)
	for _, item := range containers {
		container, _ := item.(map[string]any)
		env, _ := container["env"].([]any)
		container["env"] = append(env, map[string]any{
			"name": "HYPERFLEET_NAMESPACE", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.namespace"}},
		})

		if image := fmt.Sprint(container["image"]); !slices.Contains(p.images, image) {
			p.images = append(p.images, image)
		}
	}

	p.deployments = append(p.deployments, map[string]any{
		"name": o.name(), "label": o.field("metadata", "labels"), "spec": o["spec"],
	})
}

// filterDeployed returns the permissions of ServiceAccounts that a Deployment of the bundle uses.
func (p *bundleParts) filterDeployed(all []permissions) []permissions {
	return slices.DeleteFunc(slices.Clone(all), func(r permissions) bool {
		return !slices.ContainsFunc(p.deployments, func(d any) bool {
			deployment, _ := d.(map[string]any)

			return object(deployment).field("spec", "template", "spec", "serviceAccountName") == r.ServiceAccountName
		})
	})
}

func (r *release) clusterServiceVersion(p *bundleParts) ([]byte, error) {
	samples, err := r.samples(p)
	if err != nil {
		return nil, err
	}

	installMode := func(modeType string, isSupported bool) map[string]any {
		return map[string]any{"type": modeType, "supported": isSupported}
	}

	related := make([]any, 0, len(p.images))
	for _, image := range p.images {
		related = append(related, map[string]any{"name": "hyperfleet", "image": image})
	}

	return yaml.Marshal(map[string]any{
		"apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion",
		"metadata": map[string]any{
			"name": "hyperfleet." + r.version,
			"annotations": map[string]any{
				"alm-examples": samples, "capabilities": "Seamless Upgrades", "categories": "Developer Tools",
				"containerImage": p.images[0], "createdAt": r.time.UTC().Format("2006-01-02T15:04:05Z"),
				"operatorframework.io/suggested-namespace": suggestedNamespace, "support": "The HyperFleet Authors",
				"description": "A fresh virtual machine for every CI job, on hardware you own",
			},
		},
		"spec": map[string]any{
			"displayName": "HyperFleet", "version": r.plainVersion(), "maturity": channel, "minKubeVersion": minKubeVersion,
			"description": "HyperFleet runs every CI job in a fresh virtual machine on hardware you own, " +
				"and deletes the machine afterwards.\n\n" +
				"Before you install the bundle, apply `" + extraManifestsName + "` of the same release. " +
				"This file has the objects that OLM does not accept in a bundle.\n",
			"keywords": []string{"ci", "runners", "github", "gitlab", "proxmox", "kubevirt"},
			"provider": map[string]any{"name": "The HyperFleet Authors"},
			"installModes": []any{
				installMode("OwnNamespace", false), installMode("SingleNamespace", false),
				installMode("MultiNamespace", false), installMode("AllNamespaces", true),
			},
			"customresourcedefinitions": map[string]any{"owned": p.owned},
			"install": map[string]any{"strategy": "deployment", "spec": map[string]any{
				"deployments": p.deployments, "permissions": p.filterDeployed(p.permissions),
				"clusterPermissions": p.filterDeployed(p.clusterPermissions),
			}},
			"relatedImages": related,
		},
	})
}

// samples returns a JSON list with one sample object of each kind.
func (r *release) samples(p *bundleParts) (string, error) {
	files, err := filepath.Glob(r.source("deploy/samples/*.yaml"))
	if err != nil {
		return "", err
	}

	operatorFiles, err := filepath.Glob(r.source("deploy/samples/written-by-the-operator/*.yaml"))
	if err != nil {
		return "", err
	}

	var (
		out   []object
		kinds = map[string]bool{}
	)

	for _, file := range append(files, operatorFiles...) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}

		objects, err := decodeObjects(string(text))
		if err != nil {
			return "", fmt.Errorf("read %s: %w", file, err)
		}

		for _, o := range objects {
			isOwned := slices.ContainsFunc(p.crd, func(crd object) bool { return crd.field("spec", "names", "kind") == o.kind() })
			if isOwned && !kinds[o.kind()] {
				kinds[o.kind()] = true
				out = append(out, o)
			}
		}
	}

	raw, err := json.MarshalIndent(out, "", "  ")

	return string(raw), err
}

// writeBundleImage writes the bundle as an OCI image. Labels of the image have the paths of the files.
func (r *release) writeBundleImage(entries []entry) error {
	var content bytes.Buffer
	if err := writeTar(&content, entries, r.time); err != nil {
		return err
	}

	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return err
	}

	config, err := image.ConfigFile()
	if err != nil {
		return err
	}

	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", "amd64", v1.Time{Time: r.time}
	config.Config = v1.Config{Labels: r.labels(bundleName)}

	maps.Copy(config.Config.Labels, bundleLabels())

	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)

	return r.writeArchive(bundleName, mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	}))
}
