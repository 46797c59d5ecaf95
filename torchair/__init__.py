"""torchair"""
