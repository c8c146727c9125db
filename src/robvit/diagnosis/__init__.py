"""Diagnosis: does an evaluation of a model's robustness deserve belief?"""
