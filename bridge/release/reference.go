// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Reference is an image's name, in its parts.
type Reference struct {
	// Registry as host or host:port, Repository without it.
	Registry, Repository string
	// Tag or Digest; with both, the digest counts.
	Tag, Digest string
}

var (
	errRepository = errors.New("the repository is not lower-case words with slashes between them")
	errTag        = errors.New("the tag is not of up to 128 letters, digits, dots, hyphens and underscores")
	errDigest     = errors.New("the digest is not sha256: with 64, or sha512: with 128 hexadecimal digits")
	errRegistry   = errors.New("the registry is no host name")
)

// The grammar of names: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
var (
	repositories = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tags         = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digests      = regexp.MustCompile(`^(sha256:[a-f0-9]{64}|sha512:[a-f0-9]{128})$`)
	registries   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[0-9]{1,5})?$`)
	versions     = regexp.MustCompile(`^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+._].*)?$`)
)

// Parse reads an image's name. A name without a registry is Docker Hub's, one without tag
// and digest has the tag latest, as everywhere.
func Parse(image string) (Reference, error) {
	var ref Reference

	name, digest, hasDigest := strings.Cut(image, "@")
	if ref.Digest = digest; hasDigest && !digests.MatchString(digest) {
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errDigest)
	}

	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name, ref.Tag = name[:colon], name[colon+1:]
		if !tags.MatchString(ref.Tag) {
			return Reference{}, fmt.Errorf("parse image %q: %w", image, errTag)
		}
	}

	if !hasDigest && ref.Tag == "" {
		ref.Tag = "latest"
	}

	registry, rest, found := strings.Cut(name, "/")
	if found && (strings.ContainsAny(registry, ".:") || registry == "localhost") {
		ref.Registry, ref.Repository = registry, rest
	} else {
		ref.Registry, ref.Repository = "docker.io", name
		if !found {
			ref.Repository = "library/" + name
		}
	}

	switch {
	case !registries.MatchString(ref.Registry):
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errRegistry)
	case !repositories.MatchString(ref.Repository):
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errRepository)
	}

	return ref, nil
}

// Manifest is the last part of the manifest's path.
func (r Reference) Manifest() string {
	if r.Digest != "" {
		return r.Digest
	}

	return r.Tag
}

// Host is where the registry answers.
func (r Reference) Host() string {
	if r.Registry == "docker.io" {
		return "registry-1.docker.io"
	}

	return r.Registry
}

// Minor is the release's minor version by its tag, such as 4.15; false where the tag, as a
// digest, does not tell.
func (r Reference) Minor() (string, bool) {
	parts := versions.FindStringSubmatch(r.Tag)
	if parts == nil {
		return "", false
	}

	major, err := strconv.Atoi(parts[1])
	if err != nil {
		return "", false
	}

	minor, err := strconv.Atoi(parts[2])

	return fmt.Sprintf("%d.%d", major, minor), err == nil
}
