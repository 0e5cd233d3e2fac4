// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

const (
	// maxSharedLength is the length in bytes of the longest text that is shared.
	maxSharedLength = 256
	// maxShared limits how many texts are known, because most names and UIDs occur once.
	maxShared = 8192
)

// NewTransform returns a function for cache.Options that saves memory: it removes managedFields, which no controller reads
// and which are half of a claim, and lets all objects share the texts that they have in common, such as labels and the
// messages of conditions. A decoder allocates each of them again for each object.
func NewTransform() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	texts := &sharedTexts{known: map[string]string{}}

	return func(in any) (any, error) {
		out, err := strip(in)
		if object, ok := out.(runtime.Object); ok && err == nil {
			texts.replace(object)
		}

		return out, err
	}
}

// sharedTexts has one copy of each text that it has seen lately.
type sharedTexts struct {
	mu    sync.Mutex
	known map[string]string
}

// replace replaces the texts in an object, which nobody else may read yet.
func (s *sharedTexts) replace(object runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.walk(reflect.ValueOf(object))
}

// walk replaces the texts in a value. It leaves out what a package keeps to itself, such as the parts of a time.
func (s *sharedTexts) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(s.share(v.String()))
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			s.walk(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				s.walk(field)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}

		for i := range v.Len() {
			s.walk(v.Index(i))
		}
	case reflect.Map:
		if texts, ok := v.Interface().(map[string]string); ok {
			s.replaceMap(texts)
		}
	default:
	}
}

// replaceMap replaces the keys and values of labels and annotations. An assignment also replaces an equal key.
func (s *sharedTexts) replaceMap(texts map[string]string) {
	for key, value := range texts {
		texts[s.share(key)] = s.share(value)
	}
}

// share returns the copy of a text that all objects share. It stores a text that it has not seen yet.
func (s *sharedTexts) share(text string) string {
	if text == "" || len(text) > maxSharedLength {
		return text
	}

	if known, ok := s.known[text]; ok {
		return known
	}

	if len(s.known) >= maxShared {
		clear(s.known)
	}

	s.known[text] = text

	return text
}
