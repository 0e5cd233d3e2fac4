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
	// besideName is what OLM takes in no bundle, or would write over.
	besideName = "hyperfleet-bundle.yaml"
	channel    = "alpha"
	// home is the namespace that the operator is for.
	home = "hyperfleet-system"
	// minKube is the first version with ValidatingAdmissionPolicies.
	minKube = "1.30.0"
)

// object is one of the manifests.
type object map[string]any

func (o object) kind() string { return fmt.Sprint(o["kind"]) }

func (o object) name() string {
	meta, _ := o["metadata"].(map[string]any)

	return fmt.Sprint(meta["name"])
}

func (o object) at(path ...string) any {
	var found any = map[string]any(o)

	for _, name := range path {
		inside, _ := found.(map[string]any)
		found = inside[name]
	}

	return found
}

// rights are what one account may do.
type rights struct {
	ServiceAccountName string `json:"serviceAccountName"`
	Rules              any    `json:"rules"`
}

// parts are what OLM wants in its own words: it makes the accounts, roles and Deployments
// itself, out of the ClusterServiceVersion.
type parts struct {
	deployments            []any
	permissions            []rights
	clusterPermissions     []rights
	owned                  []any
	images                 []string
	manifests, beside, crd []object
}

// bundle writes what the Operator Lifecycle Manager installs from, in the format registry+v1:
// the objects of deploy/base, as an OCI archive and as a folder.
func (r *release) bundle() error {
	text, err := build(r.source("deploy/base"))
	if err != nil {
		return err
	}

	objects, err := objectsIn(r.named(text))
	if err != nil {
		return err
	}

	sorted, err := sort(objects)
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

	for _, o := range sorted.beside {
		data, err := yaml.Marshal(o)
		if err != nil {
			return err
		}

		beside.WriteString("---\n" + string(data))
	}

	if err := r.write(besideName, beside.String()); err != nil {
		return err
	}

	if err := r.bundleImage(entries); err != nil {
		return err
	}

	for i := range entries {
		entries[i].name = "bundle/" + entries[i].name
	}

	return r.pack(bundleName+"-"+r.plain()+".tgz", entries)
}

func bundleLabels() map[string]string {
	const prefix = "operators.operatorframework.io.bundle."

	return map[string]string{
		prefix + "mediatype.v1": "registry+v1", prefix + "manifests.v1": "manifests/", prefix + "metadata.v1": "metadata/",
		prefix + "package.v1": "hyperfleet", prefix + "channels.v1": channel, prefix + "channel.default.v1": channel,
	}
}

func objectsIn(text string) ([]object, error) {
	var out []object

	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &o); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}

		if o != nil {
			out = append(out, o)
		}
	}

	return out, nil
}

// sort says where each object goes. One of a kind that is not known is an error: it would be
// missing where OLM installs.
func sort(objects []object) (*parts, error) {
	out := &parts{}

	for _, o := range objects {
		switch o.kind() {
		case "CustomResourceDefinition":
			out.crd = append(out.crd, o)
			out.own(o)
		case "Deployment":
			out.deploy(o)
		case "ServiceAccount", "ClusterRoleBinding", "RoleBinding":
			// OLM makes them of what follows; TestBundleGrantsWhatTheManifestsGrant holds them together.
		case "ClusterRole":
			out.clusterPermissions = append(out.clusterPermissions, rights{o.name(), o["rules"]})
		case "Role":
			out.permissions = append(out.permissions, rights{o.name(), o["rules"]})
		case "ConfigMap", "Service", "PodDisruptionBudget":
			if meta, ok := o["metadata"].(map[string]any); ok {
				delete(meta, "namespace") // it is OLM's to say
			}

			out.manifests = append(out.manifests, o)
		case "Namespace", "NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Secret":
			// The Secrets are filled in by the operator, and OLM would empty them at each upgrade.
			out.beside = append(out.beside, o)
		default:
			return nil, fmt.Errorf("bundle %s %s: say in hack/release/bundle.go where objects of this kind go", o.kind(), o.name())
		}
	}

	return out, nil
}

// own lists a kind as the operator's.
func (p *parts) own(crd object) {
	versions, _ := crd.at("spec", "versions").([]any)
	for _, version := range versions {
		about, _ := version.(map[string]any)
		kind := fmt.Sprint(crd.at("spec", "names", "kind"))
		words := object(about).at("schema", "openAPIV3Schema", "description")
		p.owned = append(p.owned, map[string]any{
			"name": crd.name(), "version": about["name"], "kind": kind, "displayName": kind, "description": words,
		})
	}
}

// deploy takes a Deployment. The namespace that OLM puts it in is the operator's.
func (p *parts) deploy(o object) {
	containers, _ := o.at("spec", "template", "spec", "containers").([]any)
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

	p.deployments = append(p.deployments, map[string]any{"name": o.name(), "label": o.at("metadata", "labels"), "spec": o["spec"]})
}

// ofDeployed are the rights of accounts that have a Deployment here.
func (p *parts) ofDeployed(all []rights) []rights {
	return slices.DeleteFunc(slices.Clone(all), func(one rights) bool {
		return !slices.ContainsFunc(p.deployments, func(d any) bool {
			deployment, _ := d.(map[string]any)

			return object(deployment).at("spec", "template", "spec", "serviceAccountName") == one.ServiceAccountName
		})
	})
}

func (r *release) clusterServiceVersion(p *parts) ([]byte, error) {
	samples, err := r.samples(p)
	if err != nil {
		return nil, err
	}

	mode := func(kind string, supported bool) map[string]any {
		return map[string]any{"type": kind, "supported": supported}
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
				"operatorframework.io/suggested-namespace": home, "support": "The HyperFleet Authors",
				"description": "A fresh virtual machine for every CI job, on hardware you own",
			},
		},
		"spec": map[string]any{
			"displayName": "HyperFleet", "version": r.plain(), "maturity": channel, "minKubeVersion": minKube,
			"description": "A fresh virtual machine for every CI job, on hardware you own, and nothing left behind.\n\n" +
				"Apply `" + besideName + "` of the same release first: it has what OLM takes in no bundle.\n",
			"keywords": []string{"ci", "runners", "github", "gitlab", "proxmox", "kubevirt"},
			"provider": map[string]any{"name": "The HyperFleet Authors"},
			"installModes": []any{
				mode("OwnNamespace", false), mode("SingleNamespace", false), mode("MultiNamespace", false), mode("AllNamespaces", true),
			},
			"customresourcedefinitions": map[string]any{"owned": p.owned},
			"install": map[string]any{"strategy": "deployment", "spec": map[string]any{
				"deployments": p.deployments, "permissions": p.ofDeployed(p.permissions),
				"clusterPermissions": p.ofDeployed(p.clusterPermissions),
			}},
			"relatedImages": related,
		},
	})
}

// samples are one object of each kind, as JSON.
func (r *release) samples(p *parts) (string, error) {
	files, err := filepath.Glob(r.source("deploy/samples/*.yaml"))
	if err != nil {
		return "", err
	}

	more, err := filepath.Glob(r.source("deploy/samples/written-by-the-operator/*.yaml"))
	if err != nil {
		return "", err
	}

	var (
		out  []object
		have = map[string]bool{}
	)

	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}

		objects, err := objectsIn(string(text))
		if err != nil {
			return "", fmt.Errorf("read %s: %w", file, err)
		}

		for _, o := range objects {
			owned := slices.ContainsFunc(p.crd, func(crd object) bool { return crd.at("spec", "names", "kind") == o.kind() })
			if owned && !have[o.kind()] {
				have[o.kind()] = true
				out = append(out, o)
			}
		}
	}

	raw, err := json.MarshalIndent(out, "", "  ")

	return string(raw), err
}

// bundleImage writes the bundle as an image: files, and labels that say where they are.
func (r *release) bundleImage(entries []entry) error {
	var layer bytes.Buffer
	if err := writeTar(&layer, entries, r.time); err != nil {
		return err
	}

	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, made); err != nil {
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

	return r.archive(bundleName, mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	}))
}
